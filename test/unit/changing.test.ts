import { attentionBackward, attentionForward, kdaBackward, kdaForward, Tensor } from '../../lib';
import { expectError } from '../support/expectError';
import { settledStats } from '../support/settled';

// Arguments that answer differently from one reading to the next: refused, or used as they were when they were checked.

describe('arrays that change or pretend', () => {
  test('float32 data for int32 must be whole numbers, as float64 data must', () => {
    const from = (...values: number[]) => Tensor.from(new Float32Array(values), undefined, { dtype: 'int32' });
    expect([...from(1, -2).dataSync()]).toEqual([1, -2]);
    for (const value of [1.5, NaN, 3e9]) expectError(() => from(value), 'ERR_OUT_OF_RANGE', /must be whole numbers/);
  });

  test('a detached array of offsets', () => {
    const cuSeqlens = Int32Array.of(0, 2);
    structuredClone(cuSeqlens.buffer, { transfer: [cuSeqlens.buffer] });
    const q = Tensor.zeros([2, 1, 8]);
    expectError(
      () => attentionForward(q, q, q, { cuSeqlensQ: cuSeqlens, cuSeqlensK: cuSeqlens }),
      'ERR_OUT_OF_RANGE',
      /cuSeqlensQ must have at least 2 entries/,
    );
  });

  // TypeScript's library does not know resizable buffers yet.
  const resizable = (bytes: number): ArrayBuffer & { resize(bytes: number): void } =>
    new (ArrayBuffer as any)(bytes, { maxByteLength: 64 });

  test('an array that lies outside its resized buffer is refused', () => {
    const buffer = resizable(32);
    const array = new Float32Array(buffer, 16, 4);
    expect(Tensor.from(array).shape).toEqual([4]);
    buffer.resize(8);
    expectError(
      () => Tensor.from(array),
      'ERR_INVALID_ARG_TYPE',
      /buffer of data was resized, and data lie outside it$/,
    );
    expect(Tensor.from(new Float32Array(buffer, 8)).shape).toEqual([0]);
  });

  test('options and shapes that resize the array while they are read: refused or right', () => {
    const buffer = resizable(16);
    const array = new Float32Array(buffer);
    const options = {
      get dtype() {
        buffer.resize(8);
        return undefined;
      },
    };
    expectError(() => Tensor.from(array, [4], options), 'ERR_OUT_OF_RANGE', /has 4 elements, the data have 2$/);
    const shape = Object.defineProperty([0], 0, {
      get() {
        buffer.resize(32);
        return 8;
      },
    });
    expect(Tensor.from(array, shape).shape).toEqual([8]);
  });

  test('nested numbers that change while they are read', () => {
    const data: number[] = [1, 2, 3, 4];
    let reads = 0;
    Object.defineProperty(data, 0, { get: () => (reads++ === 1 && (data.length = 2), 1) });
    expectError(
      () => Tensor.from(data),
      'ERR_OUT_OF_RANGE',
      /changed while they were read: expected 4 elements, got 2$/,
    );
  });

  test('offsets that answer differently each time', () => {
    let reads = 0;
    const offsets = Object.defineProperty([0, 0], 1, { get: () => (reads++ === 0 ? 2 : 1e9) });
    using q = Tensor.zeros([2, 1, 4]);
    const { out } = attentionForward(q, q, q, { cuSeqlensQ: offsets, cuSeqlensK: [0, 2] });
    expect(out.dataSync().length).toBe(8);
    expect(reads).toBe(1);
  });

  // Gives `first` once, `then` from the second reading on.
  const changing = <Value>(first: Value, then: unknown): (() => Value) => {
    let reads = 0;
    return () => (reads++ === 0 ? first : (then as Value));
  };

  test.each([NaN, -5, 'left'])('a window that becomes %p after it was checked', (then) => {
    using q = Tensor.zeros([1, 2, 1, 4]);
    const window = Object.defineProperty<[number, number]>([1, 1], 0, { get: changing(1, then) });
    expect(attentionForward(q, q, q, { window }).out.shape).toEqual([1, 2, 1, 4]);
  });

  test('a gate that loses its slope after it was checked', () => {
    using q = Tensor.from([[[[1]], [[1]]]]);
    using beta = q.view([1, 2, 1]);
    using aLog = Tensor.from([1]);
    const expected = kdaForward(q, q, q, q, beta, { gate: { aLog } }).out.dataSync();
    const read = changing(aLog, undefined);
    const gate = {
      get aLog() {
        return read();
      },
    };
    expect(kdaForward(q, q, q, q, beta, { gate }).out.dataSync()).toEqual(expected);
  });

  test('options that dispose of a tensor while they are read', () => {
    const make = () => Tensor.zeros([1, 2, 1, 4]);
    const disposing = (victim: { dispose(): void }) => ({
      get stream() {
        victim.dispose();
        return undefined;
      },
    });
    const [live, beta, other] = [make(), Tensor.zeros([1, 2, 1]), Tensor.zeros([1, 2, 1])];
    const { out, lse } = attentionForward(live, live, live);
    const { saved } = kdaForward(live, live, live, live, other);
    const [k, v, x, d, g] = [make(), make(), make(), make(), make()] as const;
    const [sink, aLog, flat, bias] = [[1], [1], [4], [1, 4]].map((shape) => Tensor.zeros(shape));
    const before = settledStats();
    const refused = (call: () => unknown, message: string) =>
      expectError(call, 'ERR_WARPGRAD_DISPOSED', `${message} was disposed`);
    const and = <Extra extends object>(extra: Extra, victim: Tensor) => Object.assign(disposing(victim), extra);
    refused(() => attentionForward(live, k, live, disposing(k)), 'attentionForward: k');
    refused(() => attentionForward(live, live, live, and({ sink }, sink)), 'attentionForward: sink');
    refused(() => attentionBackward(out, live, live, v, out, lse, disposing(v)), 'attentionBackward: v');
    refused(() => attentionBackward(d, live, live, live, out, lse, disposing(d)), 'attentionBackward: dOut');
    refused(() => kdaForward(live, live, live, g, other, disposing(g)), 'kdaForward: g');
    refused(() => kdaForward(live, live, live, live, beta, disposing(beta)), 'kdaForward: beta');
    for (const [name, gate, victim] of [
      ['aLog', { aLog }, aLog],
      ['dtBias', { lowerBound: -1, dtBias: flat }, flat],
      ['dtBias', { lowerBound: -1, dtBias: bias }, bias],
    ] as const) {
      const call = () => kdaForward(live, live, live, live, other, and({ gate }, victim));
      refused(call, `kdaForward: gate.${name}`);
    }
    refused(() => x.to(disposing(x)), 'to: the tensor');
    refused(() => kdaBackward(live, saved, disposing(saved)), 'kdaBackward: saved');
    expect(settledStats().liveBytes).toBeLessThan(before.liveBytes); // nothing was allocated for the calls
  });

  test.each(['float32', 'int32', 'float64', 'bits'])('a subclass with fields of its own, %s', (kind) => {
    const Base = { float32: Float32Array, int32: Int32Array, float64: Float64Array, bits: Uint16Array }[kind]!;
    class Pretender extends (Base as typeof Float32Array) {
      override get length() {
        return 1000;
      }
      override get byteLength() {
        return 4000;
      }
      override get byteOffset() {
        return 8;
      }
      override forEach() {}
    }
    const dtype = kind === 'bits' ? ('float16' as const) : undefined;
    const tensor = Tensor.from(Pretender.of(1, 2, 3), undefined, { ...(dtype && { dtype }) });
    expect([...tensor.dataSync()]).toEqual([1, 2, 3]);
  });

  test('a DataView is refused', () => {
    expectError(() => Tensor.from(new DataView(new ArrayBuffer(8))), 'ERR_INVALID_ARG_TYPE', /got DataView$/);
  });
});
