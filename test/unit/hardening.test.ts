import { runInNewContext } from 'node:vm';
import {
  attentionBackward,
  attentionForward,
  configure,
  Event,
  kdaForward,
  KdaSaved,
  memoryStats,
  Stream,
  Tensor,
} from '../../lib';
import { addon, MAX_CPU_THREADS } from '../../lib/native';
import { expectError } from '../support/expectError';
import { settledStats } from '../support/settled';

// Ways to misuse the library that once crashed it, hung it or gave a wrong answer. Expected values follow from the
// documented rules: refused with a code, or rounded once to nearest even.

const circular: unknown[] = [];
circular.push(circular);

describe('data and shapes', () => {
  test('a list that contains itself', () => {
    expectError(() => Tensor.from(circular as never), 'ERR_OUT_OF_RANGE', /nested at most 8 deep/);
    expectError(() => Tensor.empty(circular as never), 'ERR_OUT_OF_RANGE', /^Tensor\.empty: shape must be /);
  });

  test('uneven lists whose first ones promise 2^40 elements', () => {
    const wide = Array<number>(2 ** 20).fill(0);
    const data = [wide, ...Array<number[]>(2 ** 20 - 1).fill([])];
    expectError(() => Tensor.from(data), 'ERR_OUT_OF_RANGE', /at most 2\^30 elements/);
  });

  test('lists of 2^32 entries without one: refused, not copied until the memory is full', () => {
    const endless = new Array<number>(2 ** 32 - 1);
    const q = Tensor.zeros([2, 1, 8]);
    const attend = (options: object) =>
      attentionForward(q, q, q, { cuSeqlensQ: [0, 2], cuSeqlensK: [0, 2], ...options });
    expectError(() => Tensor.zeros(endless), 'ERR_OUT_OF_RANGE', /^Tensor\.zeros: shape must be at most 8 /);
    expectError(() => Tensor.fromPointer(64n, [1], { strides: endless }), 'ERR_OUT_OF_RANGE', /strides must be 1 /);
    expectError(() => attend({ window: endless }), 'ERR_OUT_OF_RANGE', /window must be \[left, right\]/);
    expectError(() => attend({ cuSeqlensQ: endless }), 'ERR_OUT_OF_RANGE', /cuSeqlensQ must hold whole numbers/);
  });

  test('a size of 0 does not hide others that no memory holds', () => {
    for (const shape of [
      [0, 2 ** 50, 2 ** 50],
      [2 ** 50, 2 ** 50, 0],
    ]) {
      expectError(() => Tensor.zeros(shape), 'ERR_OUT_OF_RANGE', /^Tensor\.zeros: shape must .*an addressable product/);
    }
  });

  test('strides beyond any memory', () => {
    const adopt = () => Tensor.fromPointer(4096n, [2 ** 12, 2 ** 12], { strides: [2 ** 52, 1] });
    expectError(
      adopt,
      'ERR_OUT_OF_RANGE',
      /^Tensor\.fromPointer: shape .* reaches beyond any memory from address 4096$/,
    );
  });

  test('a dimension of a tensor without any', () => {
    expectError(() => Tensor.from(3).slice(0, 0, 1), 'ERR_OUT_OF_RANGE', /^slice: expected no dimension, .* got 0$/);
  });

  test('-0 is 0', () => {
    expect(Tensor.zeros([-0]).shape).toEqual([0]);
    expect(Tensor.zeros([3]).slice(0, 0, -0).shape).toEqual([0]);
    expect(Tensor.fromPointer(4096n, [1], { strides: [-0] }).strides).toEqual([0]);
  });

  test('reading a view with more elements than memory', async () => {
    using view = Tensor.from([1]).expand([2 ** 40]);
    const message = (caller: string) =>
      new RegExp(`^${caller}: cpu: can't allocate 4398046511104 bytes for the elements; dispose of tensors that `);
    expectError(() => view.dataSync(), 'ERR_WARPGRAD_OUT_OF_MEMORY', message('dataSync'));
    await expect(view.data()).rejects.toThrow(message('data'));
  });

  test('doubles as int32: exact, or refused', () => {
    const values = [16777217, -2147483647];
    expect([...Tensor.from(new Float64Array(values), undefined, { dtype: 'int32' }).dataSync()]).toEqual(values);
    const fraction = () => Tensor.from(new Float64Array([1.9]), undefined, { dtype: 'int32' });
    expectError(fraction, 'ERR_OUT_OF_RANGE', /whole numbers in range, got 1.9/);
  });

  // 1 + 2^-11 lies halfway between two neighbours in float16; a little more must round up, whatever float32 drops.
  test.each([
    [1 + 2 ** -11 + 2 ** -40, 0x3c01],
    [1 + 2 ** -11 - 2 ** -40, 0x3c00],
    [-1 - 2 ** -11 - 2 ** -40, 0xbc01],
  ])('the double %d is rounded to float16 once', (value, bits) => {
    expect(Tensor.from([value], [1], { dtype: 'float16' }).dataSync()[0]).toBe(bits);
    expect(Tensor.from(new Float64Array([value]), [1], { dtype: 'float16' }).dataSync()[0]).toBe(bits);
  });

  // 2^24 + 2^16 + 1 is just above halfway between 0x4b80 and 0x4b81.
  test('int32 is rounded to bfloat16 once', () => {
    const data = new Int32Array([2 ** 24 + 2 ** 16 + 1]);
    expect(Tensor.from(data, [1], { dtype: 'bfloat16' }).dataSync()[0]).toBe(0x4b81);
  });
});

describe('objects', () => {
  test('the fields of a tensor are what it was made with', () => {
    const tensor = Tensor.from([1, 2, 3]);
    expect(() => Object.assign(tensor, { shape: [1e9] })).toThrow(/read only/);
    expect(() => Object.assign(tensor, { strides: [1e9] })).toThrow(/only a getter/);
    expect(tensor.strides).toEqual([1]);
  });

  test('constructors that are not for callers', () => {
    const [AnyEvent, AnyTensor] = [Event, Tensor] as unknown as [new (...args: unknown[]) => unknown, typeof Array];
    expectError(() => new AnyEvent(undefined, 'cpu'), 'ERR_INVALID_ARG_TYPE', /stream\.record/);
    expectError(() => new AnyTensor(3), 'ERR_INVALID_ARG_TYPE', /Tensor\.from/);
    const AnySaved = KdaSaved as unknown as new (...args: unknown[]) => unknown;
    expectError(() => new AnySaved(), 'ERR_INVALID_ARG_TYPE', /made by kdaForward/);
  });

  test('something with the prototype of a tensor is none', () => {
    const fake = Object.create(Tensor.prototype) as Tensor;
    expectError(() => attentionForward(fake, fake, fake), 'ERR_INVALID_ARG_TYPE', /q must be a Tensor/);
  });

  test('something with the prototype of a stream or an event is none', () => {
    const tensor = Tensor.from([1]);
    const stream = Object.create(Stream.prototype, { device: { value: 'cpu' } }) as Stream;
    expectError(() => tensor.to({ stream }), 'ERR_INVALID_ARG_TYPE', /stream must be a Stream/);
    const event = Object.create(Event.prototype, { device: { value: 'cpu' } }) as Event;
    expectError(() => Stream.current('cpu').wait(event), 'ERR_INVALID_ARG_TYPE', /event must come from/);
    expectError(() => tensor.to({ stream: null as never }), 'ERR_INVALID_ARG_TYPE', /got null/);
  });

  test('options that were not awaited, are in a map, or are a Stream: refused, not taken for none', () => {
    const x = Tensor.zeros([1, 2, 1, 8]);
    for (const options of [Promise.resolve({ causal: true }), new Map([['causal', true]]), new Date()]) {
      const refused = /options must be an object, got (Promise|Map|Date)$/;
      expectError(() => attentionForward(x, x, x, options as never), 'ERR_INVALID_ARG_TYPE', refused);
      expectError(() => Tensor.zeros([2], options as never), 'ERR_INVALID_ARG_TYPE', refused);
    }
    const stream = new Stream();
    expectError(
      () => Tensor.zeros([2], stream),
      'ERR_INVALID_ARG_TYPE',
      'Tensor.zeros: options must be { stream }, got a Stream',
    );
    expectError(() => x.to(stream), 'ERR_INVALID_ARG_TYPE', 'to: options must be { stream }, got a Stream');
  });

  test('options of any make with something to see, or plain and empty', () => {
    class Settings {
      dtype = 'float16' as const;
    }
    expect(Tensor.zeros([2], new Settings()).dtype).toBe('float16');
    expect(Tensor.zeros([2], Object.create(null) as object).dtype).toBe('float32');
    expect(Tensor.zeros([2], runInNewContext('({})') as object).dtype).toBe('float32');
  });

  test('messages of values that are hard to describe', () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    const q = Tensor.zeros([1, 1, 1, 8]);
    const refused = (value: unknown, message: RegExp) =>
      expectError(() => attentionForward(q, value as Tensor, q), 'ERR_INVALID_ARG_TYPE', message);
    refused(proxy, /k must be a Tensor, got a revoked proxy/);
    refused(1n, /got 1n/);
    refused(new (class Tensor {})(), /got one of another library, or of another copy of this one$/);
    refused('x'.repeat(1e6), /got 'x{60}…'$/);
    refused({ constructor: { name: Symbol('name') } }, /got an object$/);
    refused({ constructor: { name: 'x'.repeat(1e6) } }, /got x{60}…$/);
    refused(new (class {})(), /got an object$/);
  });

  test.each([{ scale: NaN }, { outputFinalState: 1 as never }])(
    'a refused call holds nothing of dtBias: %p',
    (wrong) => {
      const [q, beta, bias] = [[1, 1, 1, 4], [1, 1, 1], [4]].map((shape) => Tensor.zeros(shape));
      const { allocations } = settledStats();
      expect(() => kdaForward(q, q, q, q, beta, { gate: { lowerBound: -5, dtBias: bias }, ...wrong })).toThrow();
      bias.dispose();
      expect(memoryStats().allocations).toBe(allocations - 1);
    },
  );

  test('copyFrom of what was disposed', () => {
    const [target, source] = [Tensor.from([1]), Tensor.from([2])];
    source.dispose();
    expectError(() => target.copyFrom(source), 'ERR_WARPGRAD_DISPOSED', /copyFrom: source was disposed/);
    expectError(() => source.copyFrom(target), 'ERR_WARPGRAD_DISPOSED', /copyFrom: the target was disposed/);
  });

  test('contiguous checks its options', () => {
    expectError(() => Tensor.from([1]).contiguous({ foo: 1 } as never), 'ERR_INVALID_ARG_TYPE', /unknown option 'foo'/);
  });

  test('the addon refuses objects of another kind', () => {
    const stream = new addon.NativeStream(false, 0);
    const tensor = addon.tensorAllocate(stream, 0, 0, true, undefined);
    for (const call of [
      () => addon.tensorAllocate(tensor as never, 0, 0, true, undefined),
      () => addon.tensorAllocate(stream, 0, 0, true, tensor),
      () => stream.wait(tensor as never),
      () => stream.wait(new addon.NativeEvent()),
      () => addon.tensorWrite(tensor as never, tensor, new Float32Array(1)),
      () => addon.tensorCopy(stream, tensor, stream as never, false),
      () => addon.tensorAddress({} as never),
      () => new addon.NativeGraph().replay(),
    ]) {
      expect(call).toThrow(expect.objectContaining({ code: 'ERR_WARPGRAD_INTERNAL' }) as Error);
    }
  });
});

// The addon alone, as nobody should call it: whatever comes, it must not touch memory that is not the tensor's.
describe('the addon checks for itself', () => {
  const stream = new addon.NativeStream(false, 0);
  const allocate = (sizes: readonly number[], dtype = 0) => {
    addon.sizes.set(sizes);
    return addon.tensorAllocate(stream, dtype, sizes.length, true, undefined);
  };
  const view = (shape: readonly number[], strides: readonly number[], offset: number) => {
    const tensor = allocate([4, 6]);
    addon.sizes.set([...shape, ...strides]);
    return addon.tensorView(tensor, shape.length, offset, undefined);
  };

  test('views within the memory', () => {
    for (const [shape, strides, offset] of [
      [[4, 6], [6, 1], 0],
      [[24], [1], 0],
      [[24], [-1], 23],
      [[1], [1e9], 23],
      [[0], [1], 24],
      [[2, 0, 7], [1e15, 1, 1e15], 24],
      [[1e6], [0], 23],
    ] as const) {
      expect(() => view(shape, strides, offset)).not.toThrow();
    }
  });

  test.each<[readonly number[], readonly number[], number]>([
    [[25], [1], 0],
    [[24], [1], 1],
    [[1], [1], 24],
    [[1], [1], -1],
    [[0], [1], 25],
    [[0], [1], -1],
    [[2], [-1], 0],
    [[24], [-1], 22],
    [[2, 2], [23, 1], 0],
    [[2], [2 ** 52], 0],
    [[3, 3], [2 ** 52, -(2 ** 52)], 0],
    [[2 ** 31, 2 ** 31], [2 ** 40, 2 ** 40], 0],
    [[1], [1], 2 ** 52],
    [[NaN], [1], 0],
    [[2], [NaN], 0],
    [[2], [1], NaN],
    [[1.5], [1], 0],
    [[-1], [1], 0],
    [[Infinity], [0], 0],
    [[2 ** 40, 2 ** 40], [0, 0], 0],
  ])('refuses a view of shape %p with strides %p at %p', (shape, strides, offset) => {
    expect(() => view(shape, strides, offset)).toThrow(expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }) as Error);
  });

  test.each<[string, () => unknown]>([
    ['more elements than 64 bits count', () => allocate([2 ** 40, 2 ** 40])],
    ['a size that is none', () => allocate([NaN])],
    ['a negative size', () => allocate([-1])],
    ['a dtype that is none', () => allocate([1], 4)],
    ['a negative dtype', () => allocate([1], -1)],
    ['nine dimensions', () => addon.tensorAllocate(stream, 0, 9, true, undefined)],
    ['minus one dimension', () => addon.tensorAllocate(stream, 0, -1, true, undefined)],
  ])('refuses %s', (_, call) => {
    expect(call).toThrow(expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }) as Error);
  });

  test('a released tensor is none until it is filled again', () => {
    const tensor = allocate([4]);
    addon.tensorRelease(tensor);
    addon.tensorRelease(tensor);
    expect(() => addon.tensorAddress(tensor)).toThrow(/disposed/);
    expect(() => addon.tensorReadSync(stream, tensor)).toThrow(/disposed/);
    addon.sizes.set([2]);
    expect(addon.tensorAllocate(stream, 0, 1, true, tensor)).toBe(tensor);
    expect(addon.tensorReadSync(stream, tensor).byteLength).toBe(8);
  });

  test('offsets of another type, windows that are none', () => {
    const [q, k] = [allocate([2, 1, 4]), allocate([2, 1, 4])];
    const [out, lse] = [allocate([2, 1, 4]), allocate([1, 2])];
    const call = (window: number, offsets: unknown) =>
      addon.attentionForward(
        ...([stream, q, k, k, undefined, out, lse] as const),
        ...([1, 0, window, window, offsets as Int32Array, offsets as Int32Array] as const),
      );
    expect(() => call(Infinity, Int32Array.of(0, 2))).not.toThrow();
    expect(() => call(Infinity, Int8Array.of(0, 2, 0, 0))).toThrow(/expected an Int32Array/);
    expect(() => call(Infinity, Int32Array.of(0, 3))).toThrow(/must end within/);
    expect(() => call(NaN, Int32Array.of(0, 2))).toThrow(/windows must not be negative/);
  });
});

describe('numbers', () => {
  const q = Tensor.zeros([1, 2, 1, 4]);

  test.each([
    [{ softcap: 1e-300 }, /softcap must be in the range of float32/],
    [{ softcap: 1e300 }, /softcap must be in the range of float32/],
    [{ softcap: 3e38 }, /softcap must be 0 or from /],
    [{ softmaxScale: 1e300 }, /softmaxScale must be in the range of float32/],
    [{ window: [, 5] as never }, /window must be \[left, right\]/], // eslint-disable-line no-sparse-arrays
  ])('%p is refused', (options, message) => {
    expectError(() => attentionForward(q, q, q, options), 'ERR_OUT_OF_RANGE', message);
  });

  const keys = Float32Array.from({ length: 8 }, (_, i) => Math.sin(i + 1));
  const attend = (value: number) => {
    const queries = Float32Array.from({ length: 8 }, (_, i) => (i === 0 ? value : 0.5));
    const k = Tensor.from(keys, [1, 2, 1, 4]);
    return attentionForward(Tensor.from(queries, [1, 2, 1, 4]), k, k);
  };

  // sin 1 > sin 5: the first key takes all the weight, and its score, value · sin 1 / 2, is the logarithm of the sum.
  test.each([3e10, 1e12, 1e20])('a query with %d: all weight on one key', (value) => {
    const { out, lse } = attend(value);
    expect([...out.dataSync()].slice(0, 4)).toEqual([...keys.slice(0, 4)]);
    expect(lse.dataSync()[0] / (value * Math.sin(1) * 0.5)).toBeCloseTo(1, 5);
  });

  // inf - inf, as in the formulas.
  test('an infinite query gives NaN, not zeros', () => {
    expect([...attend(Infinity).out.dataSync()].slice(0, 4)).toEqual([NaN, NaN, NaN, NaN]);
  });

  // docs/attention.md §1: 0/0.
  test('a query whose visible scores are all -Infinity gives NaN, and so do its gradients; one without keys gives 0', () => {
    const q = Tensor.from([1, 1, 1], [1, 3, 1, 1]);
    const k = Tensor.from([-Infinity, 1], [1, 2, 1, 1]);
    const options = { causal: true, softmaxScale: 1 };
    const { out, lse } = attentionForward(q, k, q.slice(1, 0, 2), options);
    expect([...out.dataSync()]).toEqual([0, NaN, 1]);
    expect([...lse.dataSync()]).toEqual([-Infinity, NaN, 1]);
    const { dq, dv } = attentionBackward(q, q, k, q.slice(1, 0, 2), out, lse, options);
    expect([...dq.dataSync()].slice(0, 2)).toEqual([0, NaN]);
    expect([...dv.dataSync()]).toEqual([NaN, 1]);
  });

  test.each([NaN, Infinity])('a query without keys gives 0 with a sink of %d too', (logit) => {
    const q = Tensor.from([1, 1], [1, 2, 1, 1]);
    const k = Tensor.from([1], [1, 1, 1, 1]);
    const { out } = attentionForward(q, k, k, { causal: true, sink: Tensor.from([logit]) });
    expect([...out.dataSync()]).toEqual([0, NaN]);
  });

  test('a key with score -Infinity for all of an odd number of queries takes no weight and gets no gradient of v', () => {
    const q = Tensor.from(new Float32Array(5).fill(1), [1, 5, 1, 1]);
    const k = Tensor.from([-Infinity, 1, 2], [1, 3, 1, 1]);
    const v = Tensor.from([5, 1, 1], [1, 3, 1, 1]);
    const { out, lse } = attentionForward(q, k, v);
    expect([...out.dataSync()]).toEqual([1, 1, 1, 1, 1]);
    expect(attentionBackward(q, q, k, v, out, lse).dv.dataSync()[0]).toBe(0);
  });

  // Equal scores: the mean of the values.
  test.each(['float32', 'bfloat16'] as const)('values near the largest %s: their mean is finite', (dtype) => {
    const largest = dtype === 'float32' ? 3e38 : 2 ** 127;
    const values = (...rows: number[][]) => Tensor.from(rows.flat(), [1, rows.length, 1, 2], { dtype });
    const rows = Array.from({ length: 100 }, (_, i) => [largest, i === 99 ? NaN : 1]);
    const zeros = values(...rows.map(() => [0, 0]));
    const { out, lse } = attentionForward(zeros, zeros, values(...rows), { causal: true });
    const result = out.to({ dtype: 'float32' }).dataSync();
    rows.forEach((_, i) => {
      expect(Math.abs(result[2 * i] / largest - 1)).toBeLessThan(dtype === 'float32' ? 100 * 2 ** -24 : 2 ** -7);
      expect(result[2 * i + 1]).toBe(i === 99 ? NaN : 1);
      expect(lse.dataSync()[i]).toBeCloseTo(Math.log(i + 1), 5);
    });
  });

  test('the most threads that are allowed, or an error', () => {
    const before = new Stream();
    try {
      configure({ cpuThreads: MAX_CPU_THREADS });
    } catch (error) {
      expect(error).toMatchObject({ code: 'ERR_WARPGRAD_OUT_OF_MEMORY' });
    } finally {
      configure({ cpuThreads: 2 });
    }
    before.synchronizeSync();
  });
});
