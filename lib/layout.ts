/** Shapes and strides of tensors. Internal. */
import { DTYPES, type DType } from './dtype';
import { WarpgradRangeError } from './errors';
import { addon } from './native';
import { describe, isList, readSizes, sameShape, sizeOf } from './validate';

/** Puts the sizes where the addon reads them and gives the rank. */
export function putSizes(shape: readonly number[], strides: readonly number[] = []): number {
  const { sizes } = addon;
  const rank = shape.length;
  for (let i = 0; i < rank; ++i) sizes[i] = shape[i];
  for (let i = 0; i < strides.length; ++i) sizes[rank + i] = strides[i];
  return rank;
}

/** Checks strides given by the caller and freezes a copy. @throws WarpgradRangeError */
export function expectStrides(caller: string, strides: unknown, rank: number): readonly number[] {
  const list = isList(strides) ? readSizes(strides) : [];
  if (!isList(strides) || list.length !== rank || !list.every((step) => Number.isSafeInteger(step) && step >= 0)) {
    throw new WarpgradRangeError(`${caller}: strides must be ${rank} whole numbers >= 0, got ${describe(strides)}`);
  }
  return list;
}

/** Strides of row-major elements without gaps. */
export function contiguousStrides(shape: readonly number[]): readonly number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let i = shape.length - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return Object.freeze(strides);
}

/** @throws WarpgradRangeError */
export function expectShape(caller: string, source: Placed, shape: readonly number[]): void {
  if (sameShape(source.shape, shape)) return;
  throw new WarpgradRangeError(
    `${caller}: source must have shape [${shape.join(', ')}], got [${source.shape.join(', ')}]`,
  );
}

/** @throws WarpgradRangeError where elements of the target may share memory, as an expanded view's do */
export function expectApart(caller: string, { shape, strides }: Placed): void {
  if (sizeOf(shape) === 0) return;
  const steps = shape.flatMap((size, i) => (size > 1 ? [{ size, stride: strides[i] }] : []));
  steps.sort((a, b) => a.stride - b.stride);
  let reach = 0; // of the dimensions with shorter strides, from the first element to the last
  const apart = steps.every(({ size, stride }) => {
    const beyond = stride > reach;
    reach += stride * (size - 1);
    return beyond;
  });
  if (apart) return;
  throw new WarpgradRangeError(`${caller}: the elements of the target must not share memory, as an expanded view's do`);
}

/** @throws WarpgradRangeError for an address that is none, or where elements would lie beyond any */
export function expectAddress(caller: string, placed: Placed): void {
  const { address, shape, strides, dtype } = placed;
  const { bytes } = DTYPES[dtype];
  if (address <= 0n || address >= 2n ** 64n || address % BigInt(bytes) !== 0n) {
    throw new WarpgradRangeError(`${caller}: address must be a positive multiple of ${bytes}, got ${address}`);
  }
  if (sizeOf(shape) === 0 || spanOf(placed)[1] <= 2n ** 63n) return;
  throw new WarpgradRangeError(
    `${caller}: shape [${shape.join(', ')}] with strides [${strides.join(', ')}] reaches beyond any memory from address ${address}`,
  );
}

interface Placed {
  readonly address: bigint;
  readonly shape: readonly number[];
  readonly strides: readonly number[];
  readonly dtype: DType;
}

/** Whether the memory between the first and the last element of one meets that of the other. */
export function overlaps(a: Placed, b: Placed): boolean {
  if (sizeOf(a.shape) === 0 || sizeOf(b.shape) === 0) return false;
  const [firstA, endA] = spanOf(a);
  const [firstB, endB] = spanOf(b);
  return firstA < endB && firstB < endA;
}

function spanOf({ address, shape, strides, dtype }: Placed): [first: bigint, end: bigint] {
  const reach = strides.reduce((sum, stride, i) => sum + stride * (shape[i] - 1), 0);
  return [address, address + BigInt((reach + 1) * DTYPES[dtype].bytes)];
}
