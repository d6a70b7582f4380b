import { WarpgradRangeError, WarpgradTypeError } from './errors';

/** As in native/core/tensor_view.h. */
export const MAX_RANK = 8;

/** Number of elements of a shape. */
export function sizeOf(shape: readonly number[]): number {
  let size = 1;
  for (const dim of shape) size *= dim;
  return size;
}

export function sameShape(one: readonly number[], other: readonly number[]): boolean {
  if (one.length !== other.length) return false;
  for (let i = 0; i < one.length; ++i) if (one[i] !== other[i]) return false;
  return true;
}

/** Letters of a string that a message repeats. */
const MOST_SHOWN = 60;

const shorten = (text: string): string => (text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text);

/** Every use of it throws, even Array.isArray. */
function isRevokedProxy(value: unknown): boolean {
  try {
    Array.isArray(value);
    return false;
  } catch {
    return true;
  }
}

/** Array.isArray, for values that may be revoked proxies. */
export function isList(value: unknown): value is readonly unknown[] {
  return !isRevokedProxy(value) && Array.isArray(value);
}

/** Names a value in a message. */
export function describe(value: unknown): string {
  try {
    return describeKnown(value);
  } catch {
    return isRevokedProxy(value) ? 'a revoked proxy' : 'an object'; // whose getter throws
  }
}

function describeKnown(value: unknown): string {
  if (typeof value === 'string') return `'${shorten(value)}'`;
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value)) {
    const shown = value.slice(0, MAX_RANK + 1).map((element) => (Array.isArray(element) ? '[…]' : describe(element)));
    return `[${shown.join(', ')}${value.length > shown.length ? ', …' : ''}]`;
  }
  if (typeof value === 'object' && value !== null) {
    const name = (value.constructor as { name?: unknown } | undefined)?.name;
    return typeof name === 'string' && name !== '' ? shorten(name) : 'an object';
  }
  return typeof value === 'function' ? 'a function' : String(value);
}

/** Whether an object was not made to be plain: a promise that was not awaited, a map. */
function isOfClass(value: object): boolean {
  const prototype = Object.getPrototypeOf(value) as object | null;
  return prototype !== null && Object.getPrototypeOf(prototype) !== null;
}

/**
 * Refuses options that the operation does not have.
 * @param cures what to do about some of those
 * @throws WarpgradTypeError
 */
export function expectKnownOptions(
  caller: string,
  options: unknown,
  known: readonly string[],
  cures?: ReadonlyMap<string, string>,
): void {
  const isObject =
    typeof options === 'object' && options !== null && !isRevokedProxy(options) && !Array.isArray(options);
  let empty = true;
  if (isObject) {
    for (const name in options) {
      empty = false;
      if (!known.includes(name)) {
        const cure = cures?.get(name) ?? `the options are ${known.join(', ')}`;
        throw new WarpgradTypeError(`${caller}: unknown option '${name}'; ${cure}`);
      }
    }
  }
  // An object without a property to see would be taken for no options at all.
  if (!isObject || (empty && isOfClass(options))) {
    throw new WarpgradTypeError(`${caller}: options must be an object, got ${describe(options)}`);
  }
}

/**
 * A frozen copy of a list of sizes, with 0 for -0: what is checked is what is used. Of a list that is too long only as much
 * as shows that: it may have 2^32 entries.
 */
export function readSizes(list: readonly unknown[]): readonly number[] {
  const read = (_: unknown, i: number): number => {
    const size = list[i] as number;
    return size === 0 ? 0 : size;
  };
  return Object.freeze(Array.from({ length: Math.min(list.length, MAX_RANK + 1) }, read));
}

/** Checks a shape given by the caller and freezes a copy. @throws WarpgradTypeError, WarpgradRangeError */
export function expectShapeOption(caller: string, shape: unknown, cure = ''): readonly number[] {
  if (!isList(shape)) {
    throw new WarpgradTypeError(`${caller}: shape must be an array of sizes, got ${describe(shape)}${cure}`);
  }
  const dims = readSizes(shape);
  const valid = dims.length <= MAX_RANK && dims.every((dim) => Number.isSafeInteger(dim) && dim >= 0);
  // Without sizes of 0, which would hide strides beyond any memory.
  if (!valid || !Number.isSafeInteger(sizeOf(dims.map((dim) => dim || 1)) * 4)) {
    throw new WarpgradRangeError(
      `${caller}: shape must be at most ${MAX_RANK} whole numbers >= 0 with an addressable product, got ${describe(dims)}`,
    );
  }
  return dims;
}

/** Checks the number of a dimension. @throws WarpgradRangeError */
export function expectDim(caller: string, dim: unknown, rank: number): void {
  if (Number.isInteger(dim) && (dim as number) >= 0 && (dim as number) < rank) return;
  const expected = rank === 0 ? 'no dimension, as the tensor has none' : `a dimension from 0 to ${rank - 1}`;
  throw new WarpgradRangeError(`${caller}: expected ${expected}, got ${describe(dim)}`);
}

/** A finite number, or `fallback` when undefined. @throws WarpgradTypeError, WarpgradRangeError */
export function numberOption(caller: string, name: string, value: unknown, fallback: number): number {
  if (value === undefined) return fallback;
  if (typeof value !== 'number') {
    throw new WarpgradTypeError(`${caller}: ${name} must be a number, got ${describe(value)}`);
  }
  if (!Number.isFinite(value)) throw new WarpgradRangeError(`${caller}: ${name} must be finite, got ${value}`);
  // Operations compute in float32: a number that becomes infinity or 0 there would silently mean something else.
  const narrowed = Math.fround(value);
  if (!Number.isFinite(narrowed) || (narrowed === 0 && value !== 0)) {
    throw new WarpgradRangeError(`${caller}: ${name} must be in the range of float32, got ${value}`);
  }
  return value;
}

/** A boolean, false when undefined. @throws WarpgradTypeError */
export function flagOption(caller: string, name: string, value: unknown): boolean {
  if (value === undefined || typeof value === 'boolean') return value ?? false;
  throw new WarpgradTypeError(`${caller}: ${name} must be true or false, got ${describe(value)}`);
}
