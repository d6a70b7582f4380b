import { inspect } from 'node:util';
import { MessageChannel } from 'node:worker_threads';
import { attentionForward, kdaForward, memoryStats, Stream, Tensor, type ErrorCode } from '../../lib';
import { expectError } from '../support/expectError';
import { runScript } from '../support/child';

// Memory of others, and tensors that are written more than once. Expected values: the elements that were put there.

const values = Float32Array.from({ length: 12 }, (_, n) => n);

describe('Tensor.fromPointer on the CPU', () => {
  test('sees the memory of another tensor, without a copy', () => {
    using owner = Tensor.from(values, [3, 4]);
    using tensor = Tensor.fromPointer(owner.address, [3, 4], { owner });
    expect(tensor.address).toBe(owner.address);
    expect([...tensor.dataSync()]).toEqual([...values]);
    owner.copyFrom(
      Tensor.from(
        values.map((value) => -value),
        [3, 4],
      ),
    );
    owner.dataSync();
    expect([...tensor.dataSync()]).toEqual([...values].map((value) => -value));
  });

  test('strides and dtype', () => {
    using owner = Tensor.from(values, [12]);
    using columns = Tensor.fromPointer(owner.address + 4n, [3, 2], { strides: [4, 1], owner });
    expect([...columns.dataSync()]).toEqual([1, 2, 5, 6, 9, 10]);
    expect(columns.strides).toEqual([4, 1]);
    using bits = Tensor.fromPointer(owner.address, [4], { dtype: 'bfloat16', owner });
    expect([...bits.dataSync()]).toEqual([0, 0, 0, 0x3f80]); // 0 and 1, low half first
    using repeated = Tensor.fromPointer(owner.address + 8n, [3], { strides: [0], owner });
    expect([...repeated.dataSync()]).toEqual([2, 2, 2]);
    using empty = Tensor.fromPointer(8n, [0, 4]);
    expect(empty.dataSync()).toHaveLength(0);
  });

  test('is no memory of ours', () => {
    using owner = Tensor.from(values, [12]);
    const before = memoryStats();
    using tensor = Tensor.fromPointer(owner.address, [12], { owner });
    expect(tensor.size).toBe(12);
    expect(memoryStats()).toEqual(before);
  });

  test('views stay within it', () => {
    using owner = Tensor.from(values, [12]);
    using tensor = Tensor.fromPointer(owner.address, [2, 4], { owner });
    expect([...tensor.slice(0, 1, 2).dataSync()]).toEqual([4, 5, 6, 7]);
    expectError(() => tensor.view([12]), 'ERR_OUT_OF_RANGE', /12 elements, the tensor has 8/);
  });

  test('the owner lives until the tensor, its views and queued work are done', async () => {
    expect(await runScript('owner.ts', { nodeOptions: ['--expose-gc'] })).toEqual({
      ...{ code: 0, signal: null, stderr: '' },
      stdout: 'alive with the tensor\nalive with a view\nalive with queued work\ncollected\n',
    });
  });

  test.each<[string, unknown[], ErrorCode, RegExp]>([
    ['a number', [8, [1]], 'ERR_INVALID_ARG_TYPE', /address must be a bigint, got 8/],
    ['null', [0n, [1]], 'ERR_OUT_OF_RANGE', /address must be a positive multiple of 4, got 0/],
    ['a negative address', [-8n, [1]], 'ERR_OUT_OF_RANGE', /got -8/],
    ['65 bits', [2n ** 64n, [1]], 'ERR_OUT_OF_RANGE', /got 18446744073709551616/],
    ['an odd address', [10n, [1]], 'ERR_OUT_OF_RANGE', /multiple of 4, got 10/],
    ['an odd 16-bit address', [9n, [1], { dtype: 'float16' }], 'ERR_OUT_OF_RANGE', /multiple of 2, got 9/],
    [
      'too few strides',
      [8n, [2, 2], { strides: [1] }],
      'ERR_OUT_OF_RANGE',
      /strides must be 2 whole numbers >= 0, got \[1\]/,
    ],
    ['negative strides', [8n, [2], { strides: [-1] }], 'ERR_OUT_OF_RANGE', /strides must be 1 whole numbers >= 0/],
    ['strides beyond any memory', [8n, [2 ** 30], { strides: [2 ** 40] }], 'ERR_OUT_OF_RANGE', /beyond any memory/],
    ['an owner that is none', [8n, [1], { owner: 3 }], 'ERR_INVALID_ARG_TYPE', /owner must be an object, got 3/],
    ['an unknown option', [8n, [1], { stream: 1 }], 'ERR_INVALID_ARG_TYPE', /unknown option 'stream'/],
  ])('refuses %s', (_, args, code, message) => {
    expectError(() => Tensor.fromPointer(...(args as [bigint, number[]])), code, message);
  });
});

describe('copyFrom', () => {
  test('overwrites in place, converting, through any strides', () => {
    using target = Tensor.zeros([2, 3], { dtype: 'bfloat16' });
    using columns = target.transpose(0, 1);
    columns.copyFrom(Tensor.from([1, 2, 3, 4, 5, 6], [3, 2]));
    using floats = target.to({ dtype: 'float32' });
    expect([...floats.dataSync()]).toEqual([1, 3, 5, 2, 4, 6]);
  });

  test('waits for readers on another stream', async () => {
    const [first, second] = [new Stream(), new Stream()];
    const operand = Tensor.from(new Float32Array(512 * 8 * 64).fill(1), [1, 512, 8, 64], { stream: first });
    for (let n = 0; n < 4; n++) attentionForward(operand, operand, operand, { stream: first });
    const { out } = attentionForward(operand, operand, operand, { stream: first }); // all ones
    operand.copyFrom(Tensor.zeros([1, 512, 8, 64], { stream: second }), { stream: second });
    expect((await out.data()).every((value) => Math.abs(value - 1) < 1e-5)).toBe(true);
    expect((await operand.data()).every((value) => value === 0)).toBe(true);
  });

  test('refuses what does not fit', () => {
    using target = Tensor.zeros([2, 3]);
    expectError(
      () => target.copyFrom(Tensor.zeros([3, 2])),
      'ERR_OUT_OF_RANGE',
      'copyFrom: source must have shape [2, 3], got [3, 2]',
    );
    expectError(() => target.copyFrom([1] as never), 'ERR_INVALID_ARG_TYPE', /source must be a Tensor, got \[1\]/);
    const disposed = Tensor.zeros([2, 3]);
    disposed.dispose();
    expectError(() => target.copyFrom(disposed), 'ERR_WARPGRAD_DISPOSED', /disposed/);
    expectError(() => disposed.copyFrom(target), 'ERR_WARPGRAD_DISPOSED', /disposed/);
  });
});

// Expected text: what Node prints of a plain object with these fields, after the name of the class.
test('console.log shows the public fields alone, at any depth', () => {
  const x = Tensor.zeros([1, 1, 1, 4]);
  const beta = Tensor.zeros([1, 1, 1]);
  const stream = new Stream();
  const { out, saved } = kdaForward(x, x, x, x, beta);
  expect(inspect(x)).toBe("Tensor { shape: [ 1, 1, 1, 4 ], dtype: 'float32', device: 'cpu' }");
  expect(inspect({ x }, { depth: 1 })).toBe("{ x: Tensor { shape: [Array], dtype: 'float32', device: 'cpu' } }");
  expect(inspect({ x }, { depth: 0 })).toBe('{ x: [Tensor] }');
  expect(inspect([x, x], { depth: null, breakLength: Infinity })).toContain('Tensor { shape: [ 1, 1, 1, 4 ], dtype');
  expect(inspect([stream, stream.record(), saved])).toBe(
    "[ Stream { device: 'cpu' }, Event { device: 'cpu' }, KdaSaved {} ]",
  );
  expect(inspect(beta, { colors: true })).toContain("dtype: \u001b[32m'float32'\u001b[39m");
  [x, beta, out, saved].forEach((held) => held.dispose());
});

test('what belongs to a thread can neither be cloned nor posted, alone or inside something', () => {
  const x = Tensor.zeros([1, 1, 1, 4]);
  const beta = Tensor.zeros([1, 1, 1]);
  const stream = new Stream();
  const { out, saved } = kdaForward(x, x, x, x, beta);
  const { port1, port2 } = new MessageChannel();
  for (const [name, value] of Object.entries({ Tensor: x, Stream: stream, Event: stream.record(), KdaSaved: saved })) {
    const message = new RegExp(`an? ${name} of warpgrad belongs to its thread`);
    for (const whole of [value, { inside: [value] }]) {
      expect(() => structuredClone(whole)).toThrow(message);
      expect(() => port1.postMessage(whole)).toThrow(message);
    }
  }
  port1.close();
  port2.close();
  expect(JSON.parse(JSON.stringify(x))).toEqual({ shape: [1, 1, 1, 4], dtype: 'float32', device: 'cpu' });
  [x, beta, out, saved].forEach((held) => held.dispose());
});
