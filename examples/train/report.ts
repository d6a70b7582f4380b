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
const NEWLINE = 10;

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
  const { state, placements } = trainer;
  const loss = trainer.validate();
  const prompt = promptOf(text);
  const start = decode(prompt, text.alphabet);
  const passage = decode(sample(trainer, prompt, SAMPLE_TOKENS), text.alphabet);
  const summary = {
    text: text.name,
    device: placements.attention.device,
    kdaDevice: placements.kda.device,
    seed: state.seed,
    steps: state.step,
    parameters: trainer.parameterCount,
    tokensPerSecond: Math.round(speed),
    validation: both(loss),
    unigram: both(baselines.unigram),
    bigram: both(baselines.bigram),
    prompt: start,
    sample: passage,
  };
  writeFileSync(path.join(options.out, 'summary.json'), `${JSON.stringify(summary, null, 2)}\n`);
  writeFileSync(path.join(options.out, 'sample.txt'), start + passage);
  await writeChart(options.out, {
    title: 'A language model of one KDA layer and one attention layer',
    subtitle: `${text.name}, ${trainer.parameterCount.toLocaleString('en')} parameters, held-out loss ${loss.toFixed(2)} after ${state.step} steps`,
    train: state.trainCurve,
    // The loss over the whole split takes the place of the one over a part of it.
    validation: [...state.validationCurve.filter(({ step }) => step < state.step), { step: state.step, loss }],
    baselines,
  });
  output.write(
    `\nheld-out   ${nats(loss)} after ${state.step} steps\nbigram     ${nats(baselines.bigram)}\n` +
      `unigram    ${nats(baselines.unigram)}\n\nsample, after ${PROMPT_TOKENS} held-out bytes:\n\n${printable(start)}▸${printable(passage)}\n\n` +
      `${path.join(options.out, 'loss.svg')}, loss.png, sample.txt, summary.json\n`,
  );
  if (options.json) process.stdout.write(`${JSON.stringify(summary)}\n`);
}

/** Without what would command the terminal: any file can be the text. */
function printable(passage: string): string {
  return passage.replace(/(?![\n\t])\p{Cc}/gu, '\ufffd');
}

/** From the second line of the held-out text on: the split may have cut the first one. */
function promptOf({ validation, alphabet }: Text): Uint8Array {
  const start = validation.indexOf(alphabet.indexOf(NEWLINE)) + 1;
  const fits = start + PROMPT_TOKENS <= validation.length;
  return validation.subarray(fits ? start : 0).subarray(0, PROMPT_TOKENS);
}

function both(loss: number) {
  return { nats: loss, bits: bits(loss) };
}
