import { kdaForward, memoryStats, Tensor } from '../../lib';
import { addon, type NativeTensor } from '../../lib/native';

// The addon gives outputs their memory. Expected values: the bytes of the documented shapes, and what was alive before.

const stream = new addon.NativeStream(false, 0);
const zeros = (sizes: readonly number[]) => {
  addon.sizes.set(sizes);
  return addon.tensorAllocate(stream, 0, sizes.length, true, undefined);
};

// One row is there.
const wide = (shape: readonly number[]) => {
  using row = Tensor.zeros([...shape.slice(0, -1).map(() => 1), shape.at(-1)!]);
  return row.expand(shape);
};

test('KDA leaves nothing when there is no memory for its results', () => {
  const tokens = [2 ** 20, 2 ** 10] as const; // results of 1 TiB
  const [q, v, beta] = [wide([...tokens, 1, 1]), wide([...tokens, 1, 256]), wide([...tokens, 1])];
  const bias = Tensor.zeros([1]);
  const before = memoryStats();
  for (const options of [{ outputChunkStates: true }, { outputFinalState: true, saveIntermediates: true }]) {
    const call = () => kdaForward(q, q, v, q, beta, { ...options, gate: { lowerBound: -1, dtBias: bias } });
    expect(call).toThrow(expect.objectContaining({ code: 'ERR_WARPGRAD_OUT_OF_MEMORY' }));
    // The states of chunks alone take 16 GiB. What other tests left behind may be collected meanwhile.
    expect(memoryStats().liveBytes).toBeLessThanOrEqual(before.liveBytes);
  }
  for (const tensor of [q, v, beta, bias]) tensor.dispose();
});

test('an operation gives memory to an output that has none, and takes it back when it fails', () => {
  const [out, lse] = [addon.tensorHandle(), addon.tensorHandle()];
  expect(() => addon.tensorAddress(out)).toThrow(/disposed/);
  const [q, flat] = [zeros([1, 2, 1, 4]), zeros([8])];
  const call = (q: NativeTensor, k: NativeTensor, window = Infinity) =>
    addon.attentionForward(
      ...([stream, q, k, k, undefined, out, lse] as const),
      ...([1, 0, Infinity, window, undefined, undefined] as const),
    );
  const before = memoryStats();
  expect(() => call(out, q)).toThrow(/disposed/);
  expect(() => call(q, flat)).toThrow(/must have rank 4/);
  expect(() => call(flat, q)).toThrow(/must have rank 4/);
  expect(() => call(q, zeros([1, 2, 1, 3]))).toThrow(/k must have shape/);
  expect(() => call(q, q, NaN)).toThrow(/windows must not be negative/);
  expect(() => addon.tensorAddress(out)).toThrow(/disposed/);
  expect(memoryStats().allocations).toBe(before.allocations + 1); // the keys with 3 columns
  call(q, q);
  expect(addon.tensorReadSync(stream, out).byteLength).toBe(32);
  expect(addon.tensorReadSync(stream, lse).byteLength).toBe(8);
});
