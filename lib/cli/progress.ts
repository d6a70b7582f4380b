import { Presets, SingleBar } from 'cli-progress';

/** A progress bar on the error stream, which stays empty where that is no terminal. */
export class Progress {
  readonly #bar: SingleBar | undefined;

  constructor(total: number) {
    if (!process.stderr.isTTY) return;
    const format = '{bar} {value}/{total} · {label}';
    this.#bar = new SingleBar({ format, hideCursor: true, clearOnComplete: true }, Presets.shades_classic);
    this.#bar.start(total, 0, { label: '' });
  }

  /** Names what runs now. */
  label(label: string): void {
    this.#bar?.update({ label });
  }

  /** One of `total` is done. */
  step(): void {
    this.#bar?.increment();
  }

  stop(): void {
    this.#bar?.stop();
  }
}
