import type { Float64Tensor } from '../../lib/reference/float64';

// Cutting and joining of float64 arrays along one dimension.

/** Indices `start` to `end - 1` of dimension `dim`. */
export function sliceOf({ shape, data }: Float64Tensor, dim: number, start: number, end: number): Float64Tensor {
  const [outer, extent, inner] = around(shape, dim);
  const blocks = Array.from({ length: outer }, (_, n) =>
    data.subarray((n * extent + start) * inner, (n * extent + end) * inner),
  );
  return { shape: replaced(shape, dim, end - start), data: concatenated(blocks) };
}

/** Arrays put together along dimension `dim`. */
export function joinOf(parts: readonly Float64Tensor[], dim: number): Float64Tensor {
  const extent = parts.reduce((sum, part) => sum + part.shape[dim], 0);
  const shape = replaced(parts[0].shape, dim, extent);
  const [outer] = around(shape, dim);
  const blocks = Array.from({ length: outer }, (_, n) =>
    parts.map(({ data }) => data.subarray((n * data.length) / outer, ((n + 1) * data.length) / outer)),
  );
  return { shape, data: concatenated(blocks.flat()) };
}

/** A copy with dimension `dim` from index `start` on replaced by what `draw` gives. */
export function changedFrom(tensor: Float64Tensor, dim: number, start: number, draw: () => number): Float64Tensor {
  const head = sliceOf(tensor, dim, 0, start);
  const tail = sliceOf(tensor, dim, start, tensor.shape[dim]);
  return joinOf([head, { ...tail, data: tail.data.map(draw) }], dim);
}

/** The elementwise sum of arrays of one shape. */
export function sumOf(parts: readonly Float64Tensor[]): Float64Tensor {
  return { shape: parts[0].shape, data: parts[0].data.map((_, n) => parts.reduce((sum, p) => sum + p.data[n], 0)) };
}

function replaced(shape: readonly number[], dim: number, extent: number): number[] {
  return shape.map((size, i) => (i === dim ? extent : size));
}

function around(shape: readonly number[], dim: number): [outer: number, extent: number, inner: number] {
  const product = (sizes: readonly number[]) => sizes.reduce((total, size) => total * size, 1);
  return [product(shape.slice(0, dim)), shape[dim], product(shape.slice(dim + 1))];
}

function concatenated(blocks: readonly Float64Array[]): Float64Array {
  const result = new Float64Array(blocks.reduce((sum, block) => sum + block.length, 0));
  let at = 0;
  for (const block of blocks) {
    result.set(block, at);
    at += block.length;
  }
  return result;
}
