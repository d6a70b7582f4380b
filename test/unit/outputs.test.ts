import { attentionBackward, attentionForward, kdaBackward, kdaForward, memoryStats, Tensor } from '../../lib';
import { addon, type NativeTensor } from '../../lib/native';
import { expectError } from '../support/expectError';

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

// Before those that leave tensors to the garbage collector, which might take them meanwhile.
test('an operation gives memory to an output that has none, and takes it back when it fails', () => {
  const [out, lse] = [addon.tensorHandle(), addon.tensorHandle()];
  expect(() => addon.tensorAddress(out)).toThrow(/disposed/);
  const [q, flat, narrow] = [zeros([1, 2, 1, 4]), zeros([8]), zeros([1, 2, 1, 3])];
  const call = (q: NativeTensor, k: NativeTensor, window = Infinity) =>
    addon.attentionForward(
      ...([stream, q, k, k, undefined, out, lse] as const),
      ...([1, 0, Infinity, window, undefined, undefined] as const),
    );
  const before = memoryStats();
  expect(() => call(out, q)).toThrow(/disposed/);
  expect(() => call(q, flat)).toThrow(/must have rank 4/);
  expect(() => call(flat, q)).toThrow(/must have rank 4/);
  expect(() => call(q, narrow)).toThrow(/k must have shape/);
  expect(() => call(q, q, NaN)).toThrow(/windows must not be negative/);
  for (const output of [out, lse]) expect(() => addon.tensorAddress(output)).toThrow(/disposed/);
  expect(memoryStats().allocations).toBe(before.allocations);
  call(q, q);
  expect(addon.tensorReadSync(stream, out).byteLength).toBe(32);
  expect(addon.tensorReadSync(stream, lse).byteLength).toBe(8);
});

describe('who asks for more memory than there is, and what for', () => {
  const refused = (call: () => unknown, what: string, bytes: number) =>
    expectError(
      call,
      'ERR_WARPGRAD_OUT_OF_MEMORY',
      new RegExp(
        `^${what}: cpu: can't allocate ${bytes} bytes; \\d+ bytes are in use by tensors; dispose of tensors that `,
      ),
    );

  test('attention', () => {
    const [q, v] = [wide([2 ** 20, 2 ** 20, 1, 1]), wide([2 ** 20, 2 ** 20, 1, 256])];
    refused(() => attentionForward(q, q, v), 'attentionForward: out', 2 ** 50);
    const one = Tensor.zeros([1, 1, 1, 1]);
    const many = wide([1, 2 ** 40, 1, 1]);
    const lse = Tensor.zeros([1, 1, 1]);
    refused(() => attentionBackward(one, one, many, many, one, lse), 'attentionBackward: dk', 2 ** 42);
  });

  test('KDA', () => {
    const dims = [2 ** 20, 2 ** 10] as const;
    const [q, v, beta] = [wide([...dims, 1, 1]), wide([...dims, 1, 256]), wide([...dims, 1])];
    const forward = (options: object) => () => kdaForward(q, q, v, q, beta, options);
    refused(forward({}), 'kdaForward: out', 2 ** 40);
    const deep = wide([...dims, 1, 256]);
    const wider = (options: object) => () => kdaForward(deep, deep, v, deep, beta, options);
    refused(wider({ outputFinalState: true }), 'kdaForward: finalState', 2 ** 38);
    refused(wider({ outputChunkStates: true }), 'kdaForward: chunkStates', 2 ** 42);
    // A chunk keeps its state, 64 rows of values and a matrix of 64 by 64.
    const floats = 2 ** 24 * (256 * 256 + 64 * 256 + 64 * 64);
    refused(wider({ saveIntermediates: true }), 'kdaForward: saved', 4 * floats);
  });

  test('KDA backward', () => {
    const [x, beta] = [Tensor.zeros([2 ** 30, 0, 1, 256]), Tensor.zeros([2 ** 30, 0, 1])];
    const { out, saved } = kdaForward(x, x, x, x, beta, { initialState: wide([2 ** 30, 1, 256, 256]) });
    refused(() => kdaBackward(out, saved), 'kdaBackward: dInitialState', 2 ** 48);
  });

  test('copies', () => {
    refused(() => wide([2 ** 40, 1]).to({ dtype: 'bfloat16' }), 'to', 2 ** 41);
    refused(() => wide([2 ** 40, 1]).contiguous(), 'contiguous', 2 ** 42);
    refused(() => Tensor.zeros([2 ** 40]), 'Tensor.zeros', 2 ** 42);
  });

  test('Tensor.from, which gives back what it has copied', () => {
    const before = memoryStats();
    const copy = jest.spyOn(addon, 'tensorCopy').mockImplementationOnce(() => {
      throw Object.assign(new Error('cpu: full'), { code: 'ERR_WARPGRAD_OUT_OF_MEMORY' });
    });
    const convert = () => Tensor.from(new Float32Array(2 ** 20), [2 ** 20], { dtype: 'bfloat16' });
    expectError(convert, 'ERR_WARPGRAD_OUT_OF_MEMORY', 'Tensor.from: cpu: full');
    copy.mockRestore();
    expect(memoryStats().liveBytes).toBeLessThan(before.liveBytes + 2 ** 22);
  });

  // 2^32 + 1 chunks are as many as 1 where 32 bits count them.
  test.each([2 ** 31 + 1, 2 ** 32 + 1])('the intermediates of %d chunks', (chunks) => {
    const [q, beta] = [wide([chunks, 1, 1, 1]), wide([chunks, 1, 1])];
    const call = () => kdaForward(q, q, q, q, beta, { saveIntermediates: true });
    refused(call, 'kdaForward: saved', 4 * chunks * (1 + 64 + 64 * 64));
  });

  test.each([45, 50])('the intermediates of 2^%d chunks', (exponent) => {
    const chunks = 2 ** exponent;
    const [q, beta] = [wide([chunks, 1, 1, 1]), wide([chunks, 1, 1])];
    const call = () => kdaForward(q, q, q, q, beta, { saveIntermediates: true });
    expectError(call, 'ERR_WARPGRAD_OUT_OF_MEMORY', /^kdaForward: saved: no memory holds about \d+ bytes$/);
  });
});
