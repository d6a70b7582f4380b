/** The command line. */
import { existsSync, statSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import type { Placement } from 'warpgrad/tfjs';
import { UsageError } from './errors';

const DEFAULT_STEPS = 800;
const DEFAULT_SEED = 1;

export const HELP = `Trains a small language model (one KDA layer, one attention layer) on real text.

  npm start -- [options]

  --text FILE     the text to learn (default: declarations that TypeScript ships)
  --steps N       train up to this step (default: ${DEFAULT_STEPS})
  --device D      auto, cpu, cuda or cuda:N: where attention and KDA run (default: auto)
  --seed S        seed of the first parameters, the batches and the sample (default: ${DEFAULT_SEED})
  --save FILE     write a checkpoint (safetensors) there, at the end and on Ctrl-C
  --resume FILE   go on from a checkpoint as if the run had not stopped
  --out DIR       folder for the curve, the sample and the summary (default: runs/<time>)
  --json          print the summary as JSON on the standard output, and all else on the standard error
  --help, -h      print this
`;

export interface Options {
  readonly text?: string;
  readonly steps: number;
  readonly device: NonNullable<Placement['device']>;
  readonly seed: number;
  readonly save?: string;
  readonly resume?: string;
  readonly out: string;
  readonly json: boolean;
  readonly help: boolean;
}

const STRING = { type: 'string' } as const;
const FLAG = { type: 'boolean', default: false } as const;
const SPECIFICATION = {
  ...{ text: STRING, steps: STRING, device: STRING, seed: STRING, save: STRING, resume: STRING, out: STRING },
  ...{ json: FLAG, help: { ...FLAG, short: 'h' } },
};

/** @throws UsageError for anything that the program can't take. */
export function parseOptions(args: string[]): Options {
  const { steps, seed, device = 'auto', out, ...given } = parse(args);
  if (given.resume !== undefined && seed !== undefined) {
    throw new UsageError('--seed: a resumed run keeps the seed of its checkpoint; leave --seed out');
  }
  if (!/^(auto|cpu|cuda(:\d{1,4})?)$/.test(device)) {
    throw new UsageError(`--device must be auto, cpu, cuda or cuda:N, got '${device}'`);
  }
  if (out === '') throw new UsageError("--out must be a folder, got ''");
  checkTarget(given.save);
  return {
    ...given,
    steps: wholeNumber('--steps', steps, DEFAULT_STEPS, 1),
    seed: wholeNumber('--seed', seed, DEFAULT_SEED, 0),
    device: device as Options['device'],
    out: out ?? path.join('runs', new Date().toISOString().slice(0, 19).replaceAll(':', '-')),
  };
}

function parse(args: string[]) {
  try {
    return parseArgs({ args: joinNumbers(args), options: SPECIFICATION, allowPositionals: false }).values;
  } catch (cause) {
    throw new UsageError(`${(cause as Error).message}\nSee npm start -- --help`, { cause });
  }
}

/** `--steps -5` as `--steps=-5`: parseArgs would take the number for an option. */
function joinNumbers(args: readonly string[]): string[] {
  const joined: string[] = [];
  for (const arg of args) {
    const last = joined.at(-1);
    if (/^-\d/.test(arg) && last?.startsWith('--')) joined[joined.length - 1] = `${last}=${arg}`;
    else joined.push(arg);
  }
  return joined;
}

function wholeNumber(name: string, value: string | undefined, fallback: number, least: number): number {
  if (value === undefined) return fallback;
  const number = Number(value);
  if (!/^\d+$/.test(value) || !Number.isSafeInteger(number) || number < least) {
    throw new UsageError(`${name} must be a whole number of at least ${least}, got '${value}'`);
  }
  return number;
}

/** Found out now, and not after the training. */
function checkTarget(save: string | undefined): void {
  if (save === undefined) return;
  if (save === '') throw new UsageError("--save must be a file, got ''");
  const folder = path.dirname(path.resolve(save));
  if (!existsSync(folder)) throw new UsageError(`--save: there is no folder ${folder}`);
  if (statSync(save, { throwIfNoEntry: false })?.isDirectory()) throw new UsageError(`--save: ${save} is a folder`);
}
