/** A dense, row-major array of float64 numbers with its shape: what the reference operations take and return. */
export interface Float64Tensor {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

/** Copies `data` (row-major, one number an element of `shape`) to float64. */
export function float64(data: ArrayLike<number>, shape: readonly number[]): Float64Tensor {
  const size = sizeOf(shape);
  if (data.length !== size) throw new RangeError(`float64: shape [${shape.join(', ')}] needs ${size} numbers`);
  return { shape: [...shape], data: Float64Array.from(data) };
}

/** A tensor of zeros. */
export function zeros64(shape: readonly number[]): Float64Tensor {
  return { shape: [...shape], data: new Float64Array(sizeOf(shape)) };
}

/** The rows of one sequence: `start`, `start + 1`, …, `start + length - 1` of all rows. */
export interface RowRange {
  readonly start: number;
  readonly length: number;
}

/** One range a sequence: from `cuSeqlens` when packed, else `batch` sequences of `length` rows. */
export function sequenceRows(cuSeqlens: ArrayLike<number> | undefined, batch: number, length: number): RowRange[] {
  if (cuSeqlens === undefined) return Array.from({ length: batch }, (_, b) => ({ start: b * length, length }));
  return Array.from({ length: cuSeqlens.length - 1 }, (_, n) => {
    const start = cuSeqlens[n];
    return { start, length: cuSeqlens[n + 1] - start };
  });
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, extent) => product * extent, 1);
}
