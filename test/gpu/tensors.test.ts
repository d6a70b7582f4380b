import { attentionForward, Tensor, type DType } from '../../lib';
import { expectBitwiseEqual } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { Random } from '../support/random';
import { fromTensor, toTensor } from '../support/run';

const DTYPES: readonly DType[] = ['float32', 'float16', 'bfloat16', 'int32'];

/** Values at which conversions differ: ties, the ends of each dtype, numbers that are none. */
const EDGES = [
  ...[0, -0, 1, -1, 0.5, 1.5, 2.5, -2.5, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 2 ** -24],
  ...[2 ** -25, 3 * 2 ** -26, 2 ** -126, 2 ** -133, 2 ** -149, 65504, 65519, 65520, 3.3895e38, 3.4e38, 2 ** 24 + 1],
  ...[2 ** 31, -(2 ** 31), 2 ** 31 - 128, 1e10, -1e10, Infinity, -Infinity, NaN],
];

describeCuda('copies and conversions', () => {
  test.each(DTYPES.flatMap((from) => DTYPES.map((to) => [from, to] as const)))(
    '%s to %s gives what the CPU gives, on views too',
    async (from, to) => {
      const random = new Random(`${from} to ${to}`);
      const values = Float32Array.from({ length: 5 * 6 * 7 * 8 }, (_, at) => EDGES[at] ?? 100 * random.normal());
      using source = Tensor.from(values, [5, 6, 7, 8]).to({ dtype: from });
      using copy = source.to({ device: CUDA });
      const views = [
        (tensor: Tensor) => tensor.slice(0, 0, 5),
        (tensor: Tensor) => tensor.transpose(0, 3).slice(1, 1, 5),
        (tensor: Tensor) => tensor.slice(3, 3, 6).transpose(1, 2),
        (tensor: Tensor) => tensor.slice(2, 4, 5).expand([5, 6, 9, 8]),
      ];
      for (const view of views) {
        const [expected, actual] = [view(source).to({ dtype: to }), view(copy).to({ dtype: to })];
        expectBitwiseEqual('on the GPU', (await fromTensor(actual)).data, (await fromTensor(expected)).data);
        const moved = view(source).to({ device: CUDA, dtype: to });
        expectBitwiseEqual('to the GPU', (await fromTensor(moved)).data, (await fromTensor(expected)).data);
        const back = view(copy).to({ device: 'cpu', dtype: to });
        expectBitwiseEqual('from the GPU', (await fromTensor(back)).data, (await fromTensor(expected)).data);
        expectBitwiseEqual('read', (await fromTensor(view(copy))).data, (await fromTensor(view(source))).data);
      }
    },
  );

  test('large copies arrive whole, in both directions', async () => {
    const values = Int32Array.from({ length: 12_345_679 }, (_, at) => at * 2_654_435);
    using there = Tensor.from(values, [values.length], { device: CUDA });
    expectBitwiseEqual('data', await there.data(), values);
    expectBitwiseEqual('dataSync', there.dataSync(), values);
    using back = there.to({ device: 'cpu' });
    expectBitwiseEqual('to', await back.data(), values);
  });

  test('a copy from the CPU waits for the CPU operation that makes its source', async () => {
    const q = toTensor(new Random('busy CPU').tensor([1, 700, 4, 64]), 'float32');
    const { out } = attentionForward(q, q, q);
    using there = out.to({ device: CUDA });
    expectBitwiseEqual('out', await there.data(), await out.data());
  });

  test('zeros are zero, on memory that held something else', async () => {
    for (let n = 0; n < 3; n++) {
      Tensor.from(new Float32Array(5000).fill(NaN), [5000], { device: CUDA }).dispose();
      using zeros = Tensor.zeros([5000], { device: CUDA });
      expect((await zeros.data()).every((value) => value === 0)).toBe(true);
    }
  });
});
