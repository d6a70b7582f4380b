import { Tensor, WarpgradRangeError } from '../../lib';

// Expected values: what a copy of the source gives, whatever memory it shares with the target.

const ramp = (size: number, shape: readonly number[] = [size]) =>
  Tensor.from(
    Float32Array.from({ length: size }, (_, i) => i),
    shape,
  );

test.each([
  ['up', 1, 0],
  ['down', 0, 1],
] as const)('copyFrom: a large shift %s within one buffer', (_title, target, source) => {
  const size = 1_000_000;
  const tensor = ramp(size);
  tensor.slice(0, target, target + size - 1).copyFrom(tensor.slice(0, source, source + size - 1));
  const expected = Float32Array.from({ length: size }, (_, i) => i);
  expected.copyWithin(target, source, source + size - 1);
  expect(Buffer.compare(Buffer.from(tensor.dataSync().buffer), Buffer.from(expected.buffer))).toBe(0);
});

test('copyFrom: the transpose of itself', () => {
  const tensor = ramp(9, [3, 3]);
  tensor.copyFrom(tensor.transpose(0, 1));
  expect([...tensor.dataSync()]).toEqual([0, 3, 6, 1, 4, 7, 2, 5, 8]);
});

test('copyFrom: a column onto its neighbour rows', () => {
  const tensor = ramp(6, [3, 2]);
  tensor.slice(0, 1, 3).copyFrom(tensor.slice(0, 0, 2));
  expect([...tensor.dataSync()]).toEqual([0, 1, 0, 1, 2, 3]);
});

test('copyFrom: a target whose elements share memory is refused', () => {
  const memory = Tensor.zeros([8]);
  const windows = Tensor.fromPointer(memory.address, [2, 3], { strides: [2, 1], owner: memory });
  const rows = Tensor.fromPointer(memory.address, [2, 3], { strides: [3, 1], owner: memory });
  for (const target of [Tensor.zeros([1, 1]).expand([2, 3]), windows]) {
    expect(() => target.copyFrom(ramp(6, [2, 3]))).toThrow(WarpgradRangeError);
    expect(() => target.copyFrom(ramp(6, [2, 3]))).toThrow(
      /copyFrom: the elements of the target must not share memory/,
    );
  }
  rows.copyFrom(ramp(6, [2, 3]));
  expect([...memory.dataSync()]).toEqual([0, 1, 2, 3, 4, 5, 0, 0]);
});

test('copyFrom: a source that a getter of the options disposes of', () => {
  const [target, source] = [ramp(4), Tensor.zeros([4])];
  const options = {
    get stream() {
      source.dispose();
      return undefined;
    },
  };
  expect(() => target.copyFrom(source, options)).toThrow('copyFrom: source was disposed');
  expect([...target.dataSync()]).toEqual([0, 1, 2, 3]);
});
