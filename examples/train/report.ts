/** What a finished run leaves: the loss beside the baselines, a sampled passage, the curve. */
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import type { Baselines } from './baselines';
import { writeChart } from './chart';
import type { Options } from './options';
import { sample } from './sample';
import { decode } from './text';
import type { Text } from './text';
import type { Trainer } from './trainer';

const PROMPT_TOKENS = 64;
const SAMPLE_TOKENS = 400;

interface Run {
  readonly trainer: Trainer;
  readonly text: Text;
  readonly baselines: Baselines;
  /** Tokens a second of the training. */
  readonly speed: number;
  readonly options: Options;
  readonly output: NodeJS.WriteStream;
}

export function nats(loss: number): string {
  return `${loss.toFixed(3)} nats (${bits(loss).toFixed(3)} bits) a byte`;
}

function bits(loss: number): number {
  return loss / Math.LN2;
}

export async function writeReport({ trainer, text, baselines, speed, options, output }: Run): Promise<void> {
  const { state, placement } = trainer;
  const loss = trainer.validate();
  state.validationCurve.push({ step: state.step, loss });
  const prompt = text.validation.subarray(0, PROMPT_TOKENS);
  const [start, passage] = [prompt, sample(trainer, prompt, SAMPLE_TOKENS)].map((t) => decode(t, text.alphabet)) as [
    string,
    string,
  ];
  const summary = {
    ...{
      text: text.name,
      device: placement.device,
      seed: state.seed,
      steps: state.step,
      tokensPerSecond: Math.round(speed),
    },
    ...{ parameters: trainer.parameterCount, validation: both(loss) },
    ...{ unigram: both(baselines.unigram), bigram: both(baselines.bigram), prompt: start, sample: passage },
  };
  writeFileSync(path.join(options.out, 'summary.json'), `${JSON.stringify(summary, null, 2)}\n`);
  writeFileSync(path.join(options.out, 'sample.txt'), start + passage);
  await writeChart(options.out, {
    title: 'A language model of one KDA layer and one attention layer',
    subtitle: `${text.name}, ${trainer.parameterCount} parameters, held-out loss ${loss.toFixed(2)} after ${state.step} steps`,
    train: state.trainCurve,
    validation: state.validationCurve,
    baselines,
  });
  output.write(
    `\nheld-out   ${nats(loss)} after ${state.step} steps\nbigram     ${nats(baselines.bigram)}\n` +
      `unigram    ${nats(baselines.unigram)}\n\nsample, after the first ${PROMPT_TOKENS} held-out bytes:\n\n${start}▸${passage}\n\n` +
      `${path.join(options.out, 'loss.svg')}, loss.png, sample.txt, summary.json\n`,
  );
  if (options.json) process.stdout.write(`${JSON.stringify(summary)}\n`);
}

function both(loss: number) {
  return { nats: loss, bits: bits(loss) };
}
