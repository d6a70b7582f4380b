/** Shapes and strides of tensors. Internal. */
import { WarpgradRangeError } from './errors';
import { addon } from './native';
import { describe } from './validate';

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
  const list = Array.isArray(strides) ? Object.freeze([...(strides as number[])]) : [];
  if (
    !Array.isArray(strides) ||
    list.length !== rank ||
    !list.every((step) => Number.isSafeInteger(step) && step >= 0)
  ) {
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
