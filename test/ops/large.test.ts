import { freemem } from 'node:os';
import { attentionBackward, attentionForward, kdaBackward, kdaForward, Tensor } from '../../lib';
import { attentionReference } from '../support/attentionCases';
import { failuresOf } from '../support/compare';
import { Random } from '../support/random';
import { readAll, toTensor } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// flash-attention 2611, fla 1080: row stride × rows past 2^31. The rows lie in a buffer of 4.8 GB that nothing writes:
// fresh pages read as zeros and take no memory until touched, so what is checked is that no offset wraps around. Expected
// values: the float64 reference with keys and values of 0.

const ROWS = 18;
const STRIDE = 2 ** 27;
const BYTES = ROWS * STRIDE * 2;
const enough = freemem() > BYTES + 2 ** 30;
const title = `element offsets past 2^31${enough ? '' : ' (skipped: needs 6 GB of free memory)'}`;

(enough ? describe : describe.skip)(title, () => {
  const D = 64;
  let buffer: Tensor;
  let rows: Tensor; // the last elements of each row, [1, ROWS, 1, D]
  beforeAll(() => {
    buffer = Tensor.empty([1, ROWS, 1, STRIDE], { dtype: 'bfloat16' });
    rows = buffer.slice(3, STRIDE - D, STRIDE);
    expect(rows.strides[1] * (ROWS - 1)).toBeGreaterThan(2 ** 31);
  });
  afterAll(() => [rows, buffer].forEach((tensor) => tensor.dispose()));

  test('attention, keys and values there', async () => {
    const random = new Random('large attention');
    const [q, dOut] = [
      random.tensor([1, 5, 1, D], () => random.integer(-3, 3)),
      random.tensor([1, 5, 1, D], () => random.integer(-3, 3)),
    ];
    const [queries, gradient] = [toTensor(q, 'bfloat16'), toTensor(dOut, 'bfloat16')];
    const { out, lse } = attentionForward(queries, rows, rows);
    const actual = await readAll({ out, lse, ...attentionBackward(gradient, queries, rows, rows, out, lse) });
    const zero = { shape: [1, ROWS, 1, D], data: new Float64Array(ROWS * D) };
    const expected = attentionReference({ title: '', inputs: { q, k: zero, v: zero }, dOut, options: {} });
    expect(failuresOf(actual, expected, (name) => randomTolerance('bfloat16', expected[name]!))).toEqual([]);
  });

  test('attention, queries and their gradients there', async () => {
    const random = new Random('large queries');
    const v = random.tensor([1, 5, 1, D], () => random.integer(-3, 3));
    const values = toTensor(v, 'bfloat16');
    const { out, lse } = attentionForward(rows, values, values);
    const actual = await readAll({ out, lse, ...attentionBackward(rows, rows, values, values, out, lse) });
    const zero = { shape: [1, ROWS, 1, D], data: new Float64Array(ROWS * D) };
    const expected = attentionReference({ title: '', inputs: { q: zero, k: v, v }, dOut: zero, options: {} });
    expect(failuresOf(actual, expected, (name) => randomTolerance('bfloat16', expected[name]!))).toEqual([]);
  });

  test('KDA, all operands there', async () => {
    const beta = toTensor({ shape: [1, ROWS, 1], data: new Float64Array(ROWS).fill(0.5) }, 'float32');
    const { out, saved } = kdaForward(rows, rows, rows, rows, beta);
    const actual = await readAll({ out, ...kdaBackward(rows, saved) });
    for (const [name, { data }] of Object.entries(actual)) {
      expect({ name, zero: data.every((value) => value === 0) }).toEqual({ name, zero: true });
    }
  });
});
