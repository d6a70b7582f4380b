import type { Float64Tensor } from '../../lib/reference/float64';

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs, max } = Math;
const { isFinite } = Number;
const { is: same } = Object;

/** How far a result may be from what is expected; each bound that is given must hold. */
export interface Tolerance {
  /** max |err| */
  readonly maxAbs?: number;
  /** rms(err) / rms(expected) */
  readonly rmsRatio?: number;
}

export interface Difference {
  readonly maxAbs: number;
  readonly maxAt: number;
  readonly rmsRatio: number;
}

/** Equal infinities differ by 0; a NaN on one side, or different infinities, by Infinity. */
export function difference(actual: ArrayLike<number>, expected: ArrayLike<number>): Difference {
  let [maxAbs, maxAt, errors, squares] = [0, 0, 0, 0];
  for (let n = 0; n < expected.length; n++) {
    const [a, e] = [actual[n], expected[n]];
    if (same(a, e) || a === e) {
      if (isFinite(e)) squares += e * e;
      continue;
    }
    const err = isFinite(a) && isFinite(e) ? abs(a - e) : Infinity;
    if (err > maxAbs) [maxAbs, maxAt] = [err, n];
    errors += err * err;
    if (isFinite(e)) squares += e * e;
  }
  return { maxAbs, maxAt, rmsRatio: errors === 0 ? 0 : Math.sqrt(errors / squares) };
}

/** Fails with the tensor's name, the measured difference and where it is largest. */
export function expectClose(name: string, actual: Float64Tensor, expected: Float64Tensor, tolerance: Tolerance): void {
  if (String(actual.shape) !== String(expected.shape)) {
    throw new Error(`${name} has shape [${actual.shape.join(', ')}], expected [${expected.shape.join(', ')}]`);
  }
  const found = difference(actual.data, expected.data);
  const { maxAbs = Infinity, rmsRatio = Infinity } = tolerance;
  if (found.maxAbs <= maxAbs && found.rmsRatio <= rmsRatio) return;
  const at = found.maxAt;
  throw new Error(
    `${name}: max|err| ${found.maxAbs.toExponential(2)} (allowed ${maxAbs.toExponential(2)}), ` +
      `rms ratio ${found.rmsRatio.toExponential(2)} (allowed ${rmsRatio.toExponential(2)}); ` +
      `at [${position(at, expected.shape).join(', ')}] of [${expected.shape.join(', ')}] ` +
      `got ${actual.data[at]}, expected ${expected.data[at]}`,
  );
}

/** What `expectClose` says of each expected result that is missing or too far off; also names results not expected. */
export function failuresOf<Name extends string>(
  actual: Partial<Record<Name, Float64Tensor>>,
  expected: Partial<Record<Name, Float64Tensor>>,
  tolerance: (name: Name) => Tolerance,
): string[] {
  const names = new Set([...Object.keys(expected), ...Object.keys(actual)] as Name[]);
  return [...names].flatMap((name) => {
    if (!actual[name]) return [`${name} is missing`];
    if (!expected[name]) return [`${name} should not be there`];
    try {
      expectClose(name, actual[name], expected[name], tolerance(name));
      return [];
    } catch (error) {
      return [(error as Error).message];
    }
  });
}

/** Fails unless both hold the same bits (NaN equals NaN, 0 differs from -0). */
export function expectBitwiseEqual(name: string, actual: ArrayLike<number>, expected: ArrayLike<number>): void {
  if (actual.length !== expected.length) throw new Error(`${name}: ${actual.length} numbers, not ${expected.length}`);
  if (ArrayBuffer.isView(actual) && ArrayBuffer.isView(expected) && bytesOf(actual).equals(bytesOf(expected))) return;
  for (let n = 0; n < expected.length; n++) {
    if (same(actual[n], expected[n])) continue;
    throw new Error(`${name}: element ${n} of ${expected.length} is ${actual[n]}, not ${expected[n]} as before`);
  }
}

/** Fails unless rows `start` to `end - 1` are 0, of either sign. */
export function expectZeroRows(name: string, { shape, data }: Float64Tensor, start: number, end: number): void {
  const width = data.length / shape[0];
  const rows = data.subarray(start * width, end * width).map(abs);
  expectBitwiseEqual(`${name} rows ${start} to ${end}`, rows, new Float64Array(rows.length));
}

function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Buffer {
  return Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
}

/** The largest finite magnitude. */
export function maxAbs(values: ArrayLike<number>): number {
  let largest = 0;
  for (let n = 0; n < values.length; n++) {
    if (isFinite(values[n])) largest = max(largest, abs(values[n]));
  }
  return largest;
}

function position(at: number, shape: readonly number[]): number[] {
  const indices: number[] = [];
  for (const extent of [...shape].reverse()) {
    indices.unshift(at % extent);
    at = Math.floor(at / extent);
  }
  return indices;
}
