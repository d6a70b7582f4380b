/** How far the training is: a bar on a terminal, a line now and then elsewhere. */
import { SingleBar } from 'cli-progress';
import { TOKENS_PER_STEP } from './trainer';

const LINE_INTERVAL = 50;
/** The loss shown is an exponential mean over about so many steps. */
const SMOOTHING_STEPS = 10;

export class Progress {
  readonly #output: NodeJS.WriteStream;
  readonly #bar: SingleBar | undefined;
  readonly #first: number;
  readonly #last: number;
  readonly #start = performance.now();
  #loss: number | undefined;

  constructor(output: NodeJS.WriteStream, first: number, last: number) {
    this.#output = output;
    this.#first = first;
    this.#last = last;
    if (output.isTTY) {
      const format =
        'training {bar} {value}/{total}  loss {loss}  held-out {validation}  {speed} tokens/s  {eta_formatted} left';
      const bar = {
        stream: output,
        format,
        barCompleteChar: '█',
        barIncompleteChar: '░',
        barsize: 24,
        hideCursor: true,
      };
      this.#bar = new SingleBar({ ...bar, gracefulExit: false });
      this.#bar.start(last, first, { loss: '–', validation: '–', speed: '–' });
    }
  }

  /** After a step: its training loss and the last held-out loss, if there is one. */
  step(step: number, loss: number, validation: number | undefined): void {
    this.#loss = this.#loss === undefined ? loss : this.#loss + (loss - this.#loss) / SMOOTHING_STEPS;
    const shown = {
      loss: this.#loss.toFixed(3),
      validation: validation?.toFixed(3) ?? '–',
      speed: this.tokensPerSecond(step).toFixed(0),
    };
    this.#bar?.update(step, shown);
    if (!this.#bar && (step % LINE_INTERVAL === 0 || step === this.#last)) {
      this.#output.write(
        `step ${String(step).padStart(String(this.#last).length)}/${this.#last}  loss ${shown.loss}  ` +
          `held-out ${shown.validation}  ${shown.speed} tokens/s\n`,
      );
    }
  }

  tokensPerSecond(step: number): number {
    return ((step - this.#first) * TOKENS_PER_STEP) / ((performance.now() - this.#start) / 1000);
  }

  stop(): void {
    this.#bar?.stop();
  }
}
