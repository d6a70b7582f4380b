import { memoryStats, Tensor, WarpgradRangeError, WarpgradTypeError } from '../../lib';
import { expectError } from '../support/expectError';
import { settledStats } from '../support/settled';

// Expected values: written out, or the same indexing done in JavaScript.

const counting = (size: number) => Float32Array.from({ length: size }, (_, n) => n);

describe('Tensor.from', () => {
  test('a typed array: one dimension, float32', async () => {
    using tensor = Tensor.from(Float32Array.of(1, 2.5, -3));
    expect(tensor).toMatchObject({ shape: [3], strides: [1], dtype: 'float32', device: 'cpu', size: 3, rank: 1 });
    expect(tensor.byteLength).toBe(12);
    expect(await tensor.data()).toEqual(Float32Array.of(1, 2.5, -3));
  });

  test('nested numbers: their shape', async () => {
    using tensor = Tensor.from([
      [1, 2, 3],
      [4, 5, 6],
    ]);
    expect(tensor).toMatchObject({ shape: [2, 3], strides: [3, 1], dtype: 'float32' });
    expect(await tensor.data()).toEqual(Float32Array.of(1, 2, 3, 4, 5, 6));
  });

  test('one number: no dimensions', async () => {
    using tensor = Tensor.from(7);
    expect(tensor).toMatchObject({ shape: [], size: 1, rank: 0, byteLength: 4 });
    expect(await tensor.data()).toEqual(Float32Array.of(7));
  });

  test('nested numbers as int32', async () => {
    using tensor = Tensor.from([1, -2, 3], [3], { dtype: 'int32' });
    expect(await tensor.data()).toEqual(Int32Array.of(1, -2, 3));
  });

  test('an Int32Array stays int32, or converts', async () => {
    using ints = Tensor.from(Int32Array.of(1, -2));
    expect(ints.dtype).toBe('int32');
    using floats = Tensor.from(Int32Array.of(1, -2), [2], { dtype: 'float32' });
    expect(await floats.data()).toEqual(Float32Array.of(1, -2));
  });

  test('a Float64Array becomes float32', async () => {
    using tensor = Tensor.from(Float64Array.of(0.1, 1e300));
    expect(await tensor.data()).toEqual(Float32Array.of(0.1, Infinity));
  });

  test('a Uint16Array is raw bits of the dtype named', async () => {
    using tensor = Tensor.from(Uint16Array.of(0x3c00, 0xc000), [2], { dtype: 'float16' });
    expect(await tensor.data()).toEqual(Uint16Array.of(0x3c00, 0xc000));
    using values = tensor.to({ dtype: 'float32' });
    expect(await values.data()).toEqual(Float32Array.of(1, -2));
  });

  test('a Uint16Array without a 16-bit dtype is refused', () => {
    expectError(
      () => Tensor.from(Uint16Array.of(1)),
      'ERR_INVALID_ARG_TYPE',
      'Tensor.from: a Uint16Array holds raw bits and needs dtype float16 or bfloat16, got dtype undefined',
    );
  });

  const ten = Array.from({ length: 10 }, (_, n) => n);
  test.each([
    ['Float32Array', Float32Array.from(ten)],
    ['Float64Array', Float64Array.from(ten)],
    ['Int32Array', Int32Array.from(ten)],
  ])('a subarray with a byte offset, of a %s', async (_kind, whole) => {
    using tensor = Tensor.from(whole.subarray(3, 7));
    expect([...(await tensor.data())]).toEqual([3, 4, 5, 6]);
  });

  test('a Uint16Array at an odd multiple of two bytes', async () => {
    const bits = new Uint16Array(new ArrayBuffer(20), 2, 4);
    bits.set([0x3f80, 0x4000, 0x4040, 0x4080]);
    using tensor = Tensor.from(bits, [4], { dtype: 'bfloat16' });
    using values = tensor.to({ dtype: 'float32' });
    expect([...(await values.data())]).toEqual([1, 2, 3, 4]);
  });

  test('data on a SharedArrayBuffer are copied at the call', async () => {
    const shared = new Float32Array(new SharedArrayBuffer(8));
    shared.set([1, 2]);
    using tensor = Tensor.from(shared);
    shared.fill(9);
    expect(await tensor.data()).toEqual(Float32Array.of(1, 2));
  });

  test('data are copied at the call', async () => {
    const data = counting(1000);
    using tensor = Tensor.from(data);
    data.fill(9);
    expect(await tensor.data()).toEqual(counting(1000));
  });

  test('an array whose buffer was transferred is refused', () => {
    const data = Float32Array.of(1, 2);
    structuredClone(data.buffer, { transfer: [data.buffer] });
    expectError(
      () => Tensor.from(data, [2]),
      'ERR_INVALID_ARG_TYPE',
      'Tensor.from: the buffer of data is detached: it was transferred elsewhere',
    );
  });

  test('a Node Buffer is refused: bytes have no dtype', () => {
    expect(() => Tensor.from(Buffer.alloc(8))).toThrow(WarpgradTypeError);
    expect(() => Tensor.from(Buffer.alloc(8))).toThrow(/^Tensor\.from: data must be .*, got Buffer$/);
  });

  test.each([
    ['a string', 'abc'],
    ['null', null],
    ['an object', {}],
    ['an ArrayBuffer', new ArrayBuffer(8)],
    ['a BigInt64Array', BigInt64Array.of(1n)],
  ])('%s is refused', (_title, data) => {
    expect(() => Tensor.from(data as never)).toThrow(WarpgradTypeError);
    expect(() => Tensor.from(data as never)).toThrow(/^Tensor\.from: data must be /);
  });

  test.each([
    ['uneven lists', [[1, 2], [3]]],
    ['a list among numbers', [1, [2]]],
    ['a number among lists', [[1], 2]],
  ])('%s are refused', (_title, data) => {
    expect(() => Tensor.from(data as never)).toThrow(/^Tensor\.from: data must be .*nested evenly/);
  });

  test.each([[['a']], [[undefined]], [[1n]], [[null]]])('elements that are no numbers are refused: %p', (data) => {
    expect(() => Tensor.from(data as never)).toThrow(WarpgradTypeError);
  });

  test('a shape that does not fit is refused', () => {
    expectError(
      () => Tensor.from([1, 2, 3], [2, 2]),
      'ERR_OUT_OF_RANGE',
      'Tensor.from: shape [2, 2] has 4 elements, the data have 3',
    );
  });

  test.each([[[-1]], [[1.5]], [[NaN]], [['2']], [[2 ** 53]], [[1, 1, 1, 1, 1, 1, 1, 1, 1]]])(
    'shape %p is refused',
    (shape) => {
      expect(() => Tensor.zeros(shape as never)).toThrow(WarpgradRangeError);
      expect(() => Tensor.zeros(shape as never)).toThrow(/^Tensor\.zeros: shape must be /);
    },
  );

  test('a shape that is no array is refused', () => {
    expect(() => Tensor.zeros(3 as never)).toThrow(WarpgradTypeError);
  });

  test.each<[string, (...args: unknown[]) => unknown, unknown[], string]>([
    ['Tensor.zeros', Tensor.zeros as never, [], ''],
    ['Tensor.empty', Tensor.empty as never, [], ''],
    ['Tensor.fromPointer', Tensor.fromPointer as never, [64n], ''],
    ['Tensor.from', Tensor.from as never, [[1, 2]], '; pass undefined to take it from the data'],
  ])('%s: sizes one by one, or options in the place of the shape', (caller, make, first, cure) => {
    const expected = `${caller}: shape must be an array of sizes, got`;
    expectError(() => make(...first, 1, 4, 2, 8), 'ERR_INVALID_ARG_TYPE', `${expected} 1${cure}`);
    expectError(() => make(...first, { dtype: 'float16' }), 'ERR_INVALID_ARG_TYPE', `${expected} Object${cure}`);
  });

  test('an unknown option is refused', () => {
    expectError(
      () => Tensor.from([1], [1], { dtyp: 'float32' } as never),
      'ERR_INVALID_ARG_TYPE',
      "Tensor.from: unknown option 'dtyp'; the options are dtype, device, stream",
    );
  });

  test('an unknown dtype is refused', () => {
    expectError(
      () => Tensor.zeros([1], { dtype: 'float64' as never }),
      'ERR_INVALID_ARG_TYPE',
      "Tensor.zeros: dtype must be one of float32, float16, bfloat16, int32, got 'float64'",
    );
  });

  test.each(['gpu', 'cuda:', 'cuda:x', 'CUDA', 7, null])('device %p is refused', (device) => {
    expect(() => Tensor.zeros([1], { device: device as never })).toThrow(WarpgradTypeError);
    expect(() => Tensor.zeros([1], { device: device as never })).toThrow(/^Tensor\.zeros: device must be /);
  });

  test("device 'auto' is the CPU where there is no GPU, and always works", () => {
    using tensor = Tensor.zeros([1], { device: 'auto' });
    expect(['cpu', 'cuda:0']).toContain(tensor.device);
  });

  test('more memory than there is: refused, ERR_WARPGRAD_OUT_OF_MEMORY', () => {
    const before = settledStats();
    expectError(
      () => Tensor.empty([2 ** 47]),
      'ERR_WARPGRAD_OUT_OF_MEMORY',
      /^Tensor\.empty: cpu: can't allocate 562949953421312 bytes/,
    );
    expect(memoryStats().liveBytes).toBe(before.liveBytes);
  });
});

describe('zeros and empty', () => {
  test.each(['float32', 'float16', 'bfloat16', 'int32'] as const)('zeros are zero: %s', async (dtype) => {
    // Memory that held something else before.
    Tensor.from(Float32Array.from({ length: 300 }, () => NaN)).dispose();
    using tensor = Tensor.zeros([3, 100], { dtype });
    expect([...(await tensor.data())]).toEqual(new Array(300).fill(0));
  });

  test('empty has its shape, and no elements where a dimension is 0', async () => {
    using tensor = Tensor.empty([2, 0, 3], { dtype: 'bfloat16' });
    expect(tensor).toMatchObject({ shape: [2, 0, 3], size: 0, byteLength: 0, dtype: 'bfloat16', isContiguous: true });
    expect(await tensor.data()).toEqual(new Uint16Array(0));
  });
});

describe('views', () => {
  const source = () => Tensor.from(counting(24), [2, 3, 4]);

  test('view: the same elements in another shape', async () => {
    using tensor = source();
    using view = tensor.view([4, 6]);
    expect(view).toMatchObject({ shape: [4, 6], strides: [6, 1] });
    expect(view.address).toBe(tensor.address);
    expect(await view.data()).toEqual(counting(24));
  });

  test('slice: offset, strides and elements', async () => {
    using tensor = source();
    using slice = tensor.slice(1, 1, 3);
    expect(slice).toMatchObject({ shape: [2, 2, 4], strides: [12, 4, 1], isContiguous: false });
    expect(slice.address - tensor.address).toBe(16n);
    expect([...(await slice.data())]).toEqual([4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23]);
  });

  test('transpose, then slice of it', async () => {
    using tensor = source();
    using turned = tensor.transpose(0, 2);
    expect(turned).toMatchObject({ shape: [4, 3, 2], strides: [1, 4, 12] });
    using part = turned.slice(0, 1, 2);
    expect([...(await part.data())]).toEqual([1, 13, 5, 17, 9, 21]);
  });

  test('expand repeats with stride 0', async () => {
    using row = Tensor.from([[1, 2, 3]]);
    using expanded = row.expand([2, 3]);
    expect(expanded).toMatchObject({ shape: [2, 3], strides: [0, 1], isContiguous: false });
    expect([...(await expanded.data())]).toEqual([1, 2, 3, 1, 2, 3]);
  });

  test('contiguous copies what has gaps and shares what has none', async () => {
    using tensor = source();
    using turned = tensor.transpose(1, 2);
    using copy = turned.contiguous();
    expect(copy).toMatchObject({ shape: [2, 4, 3], strides: [12, 3, 1], isContiguous: true });
    expect(await copy.data()).toEqual(await turned.data());
    using same = tensor.contiguous();
    expect(same.address).toBe(tensor.address);
  });

  test('to converts a strided view', async () => {
    using tensor = source();
    using half = tensor.transpose(0, 1).slice(2, 0, 1).to({ dtype: 'float16' });
    using back = half.to({ dtype: 'float32' });
    expect([...(await back.data())]).toEqual([0, 12, 4, 16, 8, 20]);
  });

  test('a one-element dimension does not break contiguity', () => {
    using tensor = Tensor.zeros([4, 1, 3]);
    using turned = tensor.transpose(0, 1);
    expect(turned.isContiguous).toBe(true);
  });

  test('dataSync gives what data gives', async () => {
    using tensor = source();
    using slice = tensor.slice(2, 0, 2);
    expect(slice.dataSync()).toEqual(await slice.data());
  });

  test.each([
    ['view of another size', (t: Tensor) => t.view([5, 5]), 'view: shape [5, 5] has 25 elements, the tensor has 24'],
    [
      'view of a transposed tensor',
      (t: Tensor) => t.transpose(0, 1).view([24]),
      'view: the tensor is not contiguous; call contiguous() first',
    ],
    [
      'slice past the end',
      (t: Tensor) => t.slice(0, 0, 3),
      'slice: expected 0 <= start <= end <= 2, got start 0, end 3',
    ],
    ['slice backwards', (t: Tensor) => t.slice(1, 2, 1), 'slice: expected 0 <= start <= end <= 3, got start 2, end 1'],
    [
      'slice by halves',
      (t: Tensor) => t.slice(1, 0.5, 1),
      'slice: expected 0 <= start <= end <= 3, got start 0.5, end 1',
    ],
    ['slice of no dimension', (t: Tensor) => t.slice(3, 0, 1), 'slice: expected a dimension from 0 to 2, got 3'],
    [
      'transpose of no dimension',
      (t: Tensor) => t.transpose(0, -1),
      'transpose: expected a dimension from 0 to 2, got -1',
    ],
    [
      'expand of a larger dimension',
      (t: Tensor) => t.expand([4, 3, 4]),
      'expand: expected [2, 3, 4] with dimensions of size 1 enlarged, got [4, 3, 4]',
    ],
  ])('%s is refused', (_title, call, message) => {
    using tensor = source();
    expectError(() => call(tensor), 'ERR_OUT_OF_RANGE', message);
  });

  test('shape and strides are frozen', () => {
    using tensor = source();
    expect(Object.isFrozen(tensor.shape)).toBe(true);
    expect(Object.isFrozen(tensor.strides)).toBe(true);
  });
});

describe('dispose', () => {
  test('using disposes at the end of the block', () => {
    let kept: Tensor;
    {
      using tensor = Tensor.zeros([4]);
      kept = tensor;
      expect(kept.disposed).toBe(false);
    }
    expect(kept.disposed).toBe(true);
  });

  test('twice is harmless, and frees once', () => {
    const before = settledStats();
    const tensor = Tensor.zeros([1000]);
    tensor.dispose();
    tensor.dispose();
    expect(settledStats()).toMatchObject({ liveBytes: before.liveBytes, allocations: before.allocations });
  });

  test.each<[string, (tensor: Tensor) => unknown]>([
    ['dataSync', (tensor) => tensor.dataSync()],
    ['view', (tensor) => tensor.view([4])],
    ['slice', (tensor) => tensor.slice(0, 0, 1)],
    ['transpose', (tensor) => tensor.transpose(0, 0)],
    ['expand', (tensor) => tensor.expand([4])],
    ['to', (tensor) => tensor.to({ dtype: 'float16' })],
    ['contiguous', (tensor) => tensor.contiguous()],
    ['address', (tensor) => tensor.address],
  ])('%s of a disposed tensor: ERR_WARPGRAD_DISPOSED', (name, call) => {
    const tensor = Tensor.zeros([4]);
    tensor.dispose();
    expectError(() => call(tensor), 'ERR_WARPGRAD_DISPOSED', `${name}: the tensor was disposed`);
  });

  test('data of a disposed tensor rejects', async () => {
    const tensor = Tensor.zeros([4]);
    tensor.dispose();
    await expect(tensor.data()).rejects.toMatchObject({ code: 'ERR_WARPGRAD_DISPOSED' });
  });

  test('metadata stay readable', () => {
    const tensor = Tensor.zeros([4, 2]);
    tensor.dispose();
    expect(tensor).toMatchObject({ shape: [4, 2], dtype: 'float32', size: 8, disposed: true });
  });

  test('a view keeps the buffer alive after its source is disposed', async () => {
    const tensor = Tensor.from(counting(6), [2, 3]);
    using row = tensor.slice(0, 1, 2);
    tensor.dispose();
    expect([...(await row.data())]).toEqual([3, 4, 5]);
  });

  test('a tensor may be disposed while its reading is under way', async () => {
    const tensor = Tensor.from(counting(100_000));
    const reading = tensor.data();
    tensor.dispose();
    expect(await reading).toEqual(counting(100_000));
  });
});

describe('memoryStats', () => {
  test('counts the bytes and buffers of live tensors, views not', () => {
    const before = settledStats();
    const tensor = Tensor.zeros([1000]);
    const view = tensor.view([10, 100]);
    const liveBytes = before.liveBytes + 4000;
    expect(settledStats()).toMatchObject({ liveBytes, allocations: before.allocations + 1 });
    tensor.dispose();
    expect(settledStats().liveBytes).toBe(liveBytes);
    view.dispose();
    expect(settledStats()).toMatchObject({ liveBytes: before.liveBytes, allocations: before.allocations });
  });

  test('remembers the peak', () => {
    Tensor.empty([10_000_000]).dispose();
    expect(memoryStats().peakBytes).toBeGreaterThanOrEqual(40_000_000);
  });
});
