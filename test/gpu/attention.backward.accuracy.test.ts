import { attentionForward } from '../../lib';
import {
  attentionInputTensors,
  drawAttentionCase,
  roundedAttentionCase,
  type AttentionCase,
} from '../support/attentionCases';
import { difference } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { differenceFailures } from '../support/differences';
import { decode16 } from '../support/dtypes';
import { Random } from '../support/random';
import { attentionOptions, runAttention, toTensor } from '../support/run';

describeCuda('accuracy of attention backward', () => {
  // Expected values: the CPU backend in float32 on the same bfloat16 operands, itself within 1e-6 of float64. The bounds are
  // FlashAttention-3's errors on such operands, and 3 % for the draw: other seeds gave dq 2.42e-3 to 2.46e-3, dk 2.38e-3
  // to 2.43e-3 and dv 2.27e-3 to 2.33e-3.
  test('relative errors of a causal layer, B 1, S 1024, H 4, D 128, bfloat16, are those of FlashAttention-3', async () => {
    const shape = [1, 1024, 4, 128];
    const drawn = drawAttentionCase(new Random('accuracy', 20250607), shape, shape, { causal: true });
    const item = roundedAttentionCase(drawn, 'bfloat16');
    const [actual, expected] = [await runAttention(item, 'bfloat16', CUDA), await runAttention(item, 'float32')];
    for (const [name, bound] of [
      ['dq', 2.46e-3],
      ['dk', 2.44e-3],
      ['dv', 2.28e-3],
    ] as const) {
      const error = difference(actual[name].data, expected[name].data).rmsRatio;
      expect({ name, error, ok: error <= 1.03 * bound }).toEqual({ name, error, ok: true });
    }
  });
});

// Expected values: central differences of the GPU's own forward. Its results and the weights inside have 11 bits: errors of
// 2^-11 of each term of the loss, twice. The step of 1/4, which all operands take exactly, makes 6 of them: 0.006 times the
// sum of a row's |dOut out|, about 5. The fourth-order formula's own error is far below that.
const STEP = 1 / 4;
const TOLERANCE = 0.03;

describeCuda('attention gradients against central differences of the forward', () => {
  const random = new Random('GPU differences');
  const round = (value: number) => Math.round(value * 64) / 64;
  const options: [string, AttentionCase['options']][] = [
    ['full', {}],
    ['causal, softcap', { causal: true, softcap: 4 }],
    ['sink, window', { window: [2, 1], sink: random.tensor([2]) }],
    ['packed', { causal: true, cuSeqlensQ: [0, 2, 2, 5], cuSeqlensK: [0, 3, 4, 7] }],
  ];

  test.each(options)('float16, %s', async (_title, option) => {
    const packed = option.cuSeqlensQ !== undefined;
    const rows = packed ? [[5], [7]] : [[1, 5], [1, 7]]; // prettier-ignore
    const drawn = drawAttentionCase(random, [...rows[0], 2, 8], [...rows[1], 1, 8], option);
    for (const tensor of [...Object.values(drawn.inputs), drawn.dOut]) {
      tensor.data.forEach((value: number, at: number) => (tensor.data[at] = round(value)));
    }
    const item = roundedAttentionCase(drawn, 'float16');
    const loss = () => {
      const { q, k, v } = item.inputs;
      const [queries, keys, values] = [q, k, v].map((tensor) => toTensor(tensor, 'float16', CUDA));
      const { out } = attentionForward(queries, keys, values, attentionOptions(item.options, CUDA));
      const bits = out.dataSync() as Uint16Array;
      return item.dOut.data.reduce((sum, weight, at) => sum + weight * decode16(bits[at], 'float16'), 0);
    };
    const results = await runAttention(item, 'float16', CUDA);
    const failures = attentionInputTensors(item).flatMap(([input, name]) =>
      differenceFailures(name, loss, input, results[name], TOLERANCE, STEP),
    );
    expect(failures).toEqual([]);
  });
});
