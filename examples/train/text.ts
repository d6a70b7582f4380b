/** The text: bytes, its alphabet, the split, and batches of windows. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { UsageError } from './errors';
import type { Random } from './random';

/** Of the default text, which is longer, only so much is used: enough for the default number of steps. */
const DEFAULT_TEXT_BYTES = 1_500_000;
const VALIDATION_SHARE = 0.05;
const MIN_BYTES = 4096;

export interface Text {
  readonly name: string;
  readonly sha256: string;
  /** The distinct bytes, ascending; tokens are indices into it. */
  readonly alphabet: Uint8Array;
  readonly train: Uint8Array;
  /** The contiguous end of the text, which training never sees. */
  readonly validation: Uint8Array;
}

/** Reads `path`, or the declarations of the browser's interfaces that TypeScript ships. */
export function loadText(path?: string): Text {
  const bytes = path === undefined ? readDefault() : readUsers(path);
  const name = path ?? 'lib.dom.d.ts of TypeScript';
  if (bytes.length < MIN_BYTES) {
    throw new UsageError(`the text ${name} has ${bytes.length} bytes; at least ${MIN_BYTES} are needed`);
  }
  const alphabet = Uint8Array.from(new Set(bytes)).sort();
  const tokenOf = new Uint8Array(256);
  alphabet.forEach((byte, token) => (tokenOf[byte] = token));
  const tokens = bytes.map((byte) => tokenOf[byte]);
  const split = Math.floor(tokens.length * (1 - VALIDATION_SHARE));
  return {
    name,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    alphabet,
    train: tokens.subarray(0, split),
    validation: tokens.subarray(split),
  };
}

function readDefault(): Uint8Array {
  const path = require.resolve('typescript/lib/lib.dom.d.ts');
  return Uint8Array.from(readFileSync(path).subarray(0, DEFAULT_TEXT_BYTES));
}

function readUsers(path: string): Uint8Array {
  try {
    return Uint8Array.from(readFileSync(path));
  } catch (cause) {
    throw new UsageError(`--text: cannot read ${path}: ${(cause as Error).message}`, { cause });
  }
}

export function decode(tokens: ArrayLike<number>, alphabet: Uint8Array): string {
  return Buffer.from(Array.from(tokens, (token) => alphabet[token])).toString('utf8');
}

/** Windows of `length` inputs, each with the same number of targets one byte on. */
export interface Windows {
  readonly inputs: Uint8Array[];
  readonly targets: Uint8Array[];
}

export function randomWindows(tokens: Uint8Array, count: number, length: number, random: Random): Windows {
  return windowsAt(
    tokens,
    Array.from({ length: count }, () => random.below(tokens.length - length)),
    length,
  );
}

export function windowsAt(tokens: Uint8Array, starts: readonly number[], length: number): Windows {
  return {
    inputs: starts.map((start) => tokens.subarray(start, start + length)),
    targets: starts.map((start) => tokens.subarray(start + 1, start + length + 1)),
  };
}
