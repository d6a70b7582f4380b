import { attentionBackward, attentionForward, kdaBackward, kdaForward, Tensor } from '../../lib';

// Tensors without elements whose other sizes are huge: there is nothing to do, and that takes no time and no memory.
// Expected values follow from the formulas: sums without terms are 0.

const LONG = 2 ** 30;
const SOON = 5_000; // milliseconds

const empty = (...shape: number[]) => Tensor.empty(shape);

test.each([
  ['sequences', [LONG, 0, 4, 8]],
  ['heads', [1, 0, LONG, 8]],
  ['rows and heads', [0, LONG, 1024, 8]],
])(
  'attention of none, with many %s',
  async (_, shape) => {
    const q = empty(...shape);
    const { out, lse } = attentionForward(q, q, q);
    expect([out.shape, (await out.data()).length, (await lse.data()).length]).toEqual([shape, 0, 0]);
    const { dq, dk, dv } = attentionBackward(out, q, q, q, out, lse);
    for (const gradient of [dq, dk, dv]) expect((await gradient.data()).length).toBe(0);
  },
  SOON,
);

test(
  'attention of packed queries without rows, with many heads',
  async () => {
    const q = empty(0, LONG * 1024, 8);
    const { out, lse } = attentionForward(q, q, q, { cuSeqlensQ: [0, 0], cuSeqlensK: [0, 0] });
    expect([(await out.data()).length, (await lse.data()).length]).toEqual([0, 0]);
  },
  SOON,
);

test(
  'attention of no queries to keys that are more than the memory holds',
  async () => {
    const q = Tensor.empty([1, 0, 1, 8], { dtype: 'bfloat16' });
    const keys = Tensor.zeros([1, 1, 1, 8], { dtype: 'bfloat16' }).expand([1, LONG * 1024, 1, 8]);
    const { out, lse } = attentionForward(q, keys, keys);
    expect([(await out.data()).length, (await lse.data()).length]).toEqual([0, 0]);
  },
  SOON,
);

test(
  'keys and values that many heads of no queries read, and their sink, have gradients of 0',
  async () => {
    const [q, k] = [empty(2, 0, LONG, 2), Tensor.from([1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 1, 2])];
    const { out, lse } = attentionForward(q, k, k);
    const { dk, dv } = attentionBackward(out, q, k, k, out, lse);
    for (const gradient of [dk, dv]) expect([...(await gradient.data())]).toEqual(new Array(8).fill(0));
    const [few, sink] = [empty(2, 0, 3, 2), Tensor.from([1, 2, 3])];
    const forward = attentionForward(few, k, k, { sink });
    const { dSink } = attentionBackward(few, few, k, k, forward.out, forward.lse, { sink });
    expect([...(await dSink!.data())]).toEqual([0, 0, 0]);
  },
  SOON,
);

test.each([
  ['sequences', [LONG, 0, 4, 8]],
  ['heads', [1, 0, LONG, 8]],
  ['tokens and heads', [0, LONG, 1024, 8]],
])(
  'KDA of none, with many %s',
  async (_, shape) => {
    const x = empty(...shape);
    const { out, saved } = kdaForward(x, x, x, x, empty(...shape.slice(0, 3)));
    expect([out.shape, (await out.data()).length]).toEqual([shape, 0]);
    const gradients = kdaBackward(out, saved);
    for (const name of ['dq', 'dk', 'dv', 'dg', 'dbeta'] as const) {
      expect((await gradients[name].data()).length).toBe(0);
    }
  },
  SOON,
);

test(
  'the parameters of the gate have gradients of 0 where there are no tokens',
  async () => {
    const x = empty(LONG, 0, 2, 2);
    const gate = { aLog: Tensor.from([1, 2]), dtBias: Tensor.from([1, 2, 3, 4]) };
    const { out, saved } = kdaForward(x, x, x, x, empty(LONG, 0, 2), { gate });
    const { dALog, dDtBias } = kdaBackward(out, saved);
    expect([...(await dALog!.data())]).toEqual([0, 0]);
    expect([...(await dDtBias!.data())]).toEqual([0, 0, 0, 0]);
  },
  SOON,
);
