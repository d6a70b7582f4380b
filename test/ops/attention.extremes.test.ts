import { attentionBackward, attentionForward, Tensor } from '../../lib';
import { attentionReference, drawAttentionCase, roundedAttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { failuresOf } from '../support/compare';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import { fromTensor, readAll, runAttention, toTensor } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// Rows of very many keys, keys of very many queries, and very large scores.

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];
/** More terms than a float32 sum of ones can count. */
const TERMS = 2 ** 24 + 2 ** 20;
const filled = (value: number, dtype: Operand) =>
  toTensor({ shape: [1, 1, 1, 1], data: Float64Array.of(value) }, dtype);

// Expected values: equal scores of 1, so lse = 1 + log(n), and out is the share of the keys whose value is 1.
test.each(['float32', 'bfloat16'] as const)('%s: a row of more keys than a float32 sum can count', async (dtype) => {
  using one = filled(1, dtype);
  using keys = one.expand([1, TERMS, 1, 1]);
  using late = Tensor.from(new Uint16Array(TERMS).fill(0x3f80, 2 ** 24), [1, TERMS, 1, 1], { dtype: 'bfloat16' });
  using values = late.to({ dtype });
  const { out, lse } = await readAll({ ...attentionForward(one, keys, values) });
  expect(lse.data[0]).toBeCloseTo(1 + Math.log(TERMS), 5);
  expect(out.data[0] / (2 ** 20 / TERMS)).toBeCloseTo(1, dtype === 'float32' ? 6 : 2);
});

// Expected values: with one key P = 1, so dv is the number of queries times dOut.
test.each(['float16', 'bfloat16'] as const)('%s: a key of more queries than a float32 sum can count', async (dtype) => {
  using one = filled(1, dtype);
  using little = filled(2 ** -10, dtype);
  using queries = one.expand([1, TERMS, 1, 1]);
  using gradient = little.expand([1, TERMS, 1, 1]);
  const { out, lse } = attentionForward(queries, one, one);
  const { dq, dk, dv } = attentionBackward(gradient, queries, one, one, out, lse);
  expect((await fromTensor(dv)).data[0]).toBe(TERMS / 2 ** 10);
  [out, lse, dq, dk, dv].forEach((tensor) => tensor.dispose());
});

// Expected values: the float64 reference. Long enough that the sums are taken in several parts, with scores that grow along
// the keys, so that each part has another maximum.
describe.each(DTYPES)('%s: sums in parts', (dtype) => {
  const draw = (label: string, rows: number, keys: number, options: Parameters<typeof drawAttentionCase>[3]) => {
    const item = drawAttentionCase(new Random(`${label} ${dtype}`), [1, rows, 2, 8], [1, keys, 1, 8], options);
    const { q, k } = item.inputs;
    q.data.forEach((value, at) => (q.data[at] = at % 8 === 0 ? 1 : value));
    k.data.forEach((value, at) => (k.data[at] = at % 8 === 0 ? (40 * at) / k.data.length : value));
    return item;
  };
  const sink = { shape: [2], data: Float64Array.of(1, 12) };
  test.each([
    ['one query', 1, 7000, {}],
    ['one query and a sink', 1, 4097, { sink }],
    ['a window that some rows reach before others', 36, 6200, { window: [5000, 0] as const }],
    ['a window and a softcap', 36, 4500, { window: [2100, 30] as const, softcap: 20 }],
    ['many queries', 4500, 70, { causal: true }],
  ])('%s', async (label, rows, keys, options) => {
    expect(await attentionFailures(draw(label, rows, keys, options), dtype)).toEqual([]);
  });
});

// Values near the largest float: the sums overflow, the mean doesn't.
test.each([3e38, (1 - 4e-6) * 2 ** 128])('sums in parts that overflow: %d', async (large) => {
  const item = drawAttentionCase(new Random('overflow'), [1, 40, 1, 8], [1, 5000, 1, 8], {});
  item.inputs.v.data.fill(large);
  const { out } = await runAttention(item, 'float32');
  for (const value of out.data) expect(value / large).toBeCloseTo(1, 5);
});

// Expected values: the float64 reference, where P is 1 for one key of a row and 0 for all others. A score of 2e9 differs from
// the next float32 by 128, and so may the scores of forward and backward and the saved lse.
test.each(DTYPES)('%s: scores near 2e9 have finite gradients, of the one key that counts', async (dtype) => {
  const random = new Random(`large scores ${dtype}`);
  const item = drawAttentionCase(random, [1, 70, 2, 16], [1, 90, 1, 16], { sink: random.tensor([2]) });
  for (const { data } of [item.inputs.q, item.inputs.k])
    data.forEach((_, at) => (data[at] = random.between(-6e4, 6e4)));
  const rounded = roundedAttentionCase(item, dtype);
  const { dk, dq, ...actual } = await runAttention(rounded, dtype);
  const expected = attentionReference(rounded);
  const { out, lse, dv, dSink } = expected;
  expect(Math.max(...lse.data)).toBeGreaterThan(1e9);
  expect(failuresOf(actual, { out, lse, dv, dSink }, (name) => randomTolerance(dtype, expected[name]!))).toEqual([]);
  // dS is 0 there, and here P times the rounding of dP - D.
  for (const { data } of [dq, dk]) for (const value of data) expect(Math.abs(value)).toBeLessThan(1e3);
});
