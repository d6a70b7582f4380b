import { attentionForward, Tensor } from '../../lib';
import { attentionForwardReference } from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from '../support/arrays';
import { drawAttentionCase, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { expectBitwiseEqual, expectClose, expectZeroRows, failuresOf, maxAbs } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { Random } from '../support/random';
import { fromTensor, runAttentionForward, toTensor } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// What broke other implementations, one test a report, as in test/ops/attention.reports.test.ts. Expected values: the
// float64 reference, for the backward too, or what a test states. What concerns gradients alone:
// attention.backward.reports.test.ts.

function drawCase(...args: Parameters<typeof drawAttentionCase>): AttentionCase {
  return roundedAttentionCase(drawAttentionCase(...args), 'bfloat16');
}

const run = (item: AttentionCase) => runAttentionForward(item, 'bfloat16', CUDA);
const failures = (item: AttentionCase) => attentionFailures(item, 'bfloat16', CUDA);

describeCuda('attention, what broke others', () => {
  test.each([false, true])('flash-attention 1254, 2562: empty sequences, causal %s', async (causal) => {
    const [cuSeqlensQ, cuSeqlensK] = [
      [0, 0, 1208, 2048, 2048],
      [0, 2538, 2600, 2600, 3000],
    ];
    const random = new Random(`empty sequences ${causal}`);
    const item = drawCase(random, [2048, 4, 32], [3000, 1, 32], { causal, cuSeqlensQ, cuSeqlensK });
    const { out, lse } = await run(item);
    expectZeroRows('out', out, 1208, 2048); // queries without keys
    expect(new Set(sliceOf(lse, 1, 1208, 2048).data)).toEqual(new Set([-Infinity]));
    const small = { cuSeqlensQ: [0, 0, 38, 64, 64], cuSeqlensK: [0, 79, 134, 134, 256] };
    expect(await failures(drawCase(random, [64, 4, 256], [256, 1, 256], { causal, ...small }))).toEqual([]);
  });

  test.each([64, 128, 256])('flash-attention 2324, 1228: rows past the end are exactly 0, D %i', async (dim) => {
    const cu = [0, 3, 8];
    const options = { cuSeqlensQ: cu, cuSeqlensK: cu, causal: true };
    const { out, lse } = await run(drawCase(new Random(`past the end ${dim}`), [300, 2, dim], [16, 2, dim], options));
    expectZeroRows('out', out, 8, 300);
    expect(new Set(sliceOf(lse, 1, 8, 300).data)).toEqual(new Set([-Infinity]));
  });

  test.each([64, 128, 192, 256])('flash-attention 1745, 2374: NaN reaches no other sequence, D %i', async (dim) => {
    const cu = [0, 40, 310, 450];
    const options = { cuSeqlensQ: cu, cuSeqlensK: cu };
    const item = drawCase(new Random(`NaN neighbours ${dim}`), [600, 2, dim], [600, 2, dim], options);
    const clean = await run(item);
    const withNaN = ({ shape, data }: Float64Tensor): Float64Tensor => ({
      shape,
      data: data.map((value, at) => {
        const row = Math.floor((at * 600) / data.length);
        return (row >= 40 && row < 310) || row >= 450 ? NaN : value;
      }),
    });
    const { q, k, v } = item.inputs;
    const dirty = await run({ ...item, inputs: { q: withNaN(q), k: withNaN(k), v: withNaN(v) } });
    for (const [start, end] of [
      [0, 40],
      [310, 450],
    ] as const) {
      expectBitwiseEqual('out', sliceOf(dirty.out, 0, start, end).data, sliceOf(clean.out, 0, start, end).data);
      expectBitwiseEqual('lse', sliceOf(dirty.lse, 1, start, end).data, sliceOf(clean.lse, 1, start, end).data);
    }
    expectZeroRows('out', dirty.out, 450, 600);
    expect(sliceOf(dirty.out, 0, 40, 310).data.every(Number.isNaN)).toBe(true);
  });

  test('flash-attention 1745: NaN in keys that a band hides reaches no row that does not see them', async () => {
    const options = { causal: true, window: [100, 0] as const };
    const item = drawCase(new Random('hidden NaN'), [1, 700, 2, 128], [1, 700, 2, 128], options);
    const clean = await run(item);
    const { q, k, v } = item.inputs;
    const spoiled = ({ shape, data }: Float64Tensor): Float64Tensor => ({
      shape,
      data: data.map((value, at) => (Math.floor(at / 256) === 333 ? NaN : value)),
    });
    const dirty = await run({ ...item, inputs: { q, k: spoiled(k), v: spoiled(v) } });
    // A tile of keys may be read by all rows of a block; rows that lie whole blocks away see none of it.
    for (const [start, end] of [
      [0, 128],
      [576, 700],
    ] as const) {
      expectBitwiseEqual('out', sliceOf(dirty.out, 1, start, end).data, sliceOf(clean.out, 1, start, end).data);
    }
    expect(sliceOf(dirty.out, 1, 333, 434).data.every(Number.isNaN)).toBe(true);
  });

  test.each([-300, -1e5])('flash-attention 2082, flashinfer 4267: all scores near %d', async (score) => {
    const drawn = drawCase(new Random(`low scores ${score}`), [1, 300, 2, 16], [1, 300, 2, 16], {
      window: [20, 0],
      softmaxScale: 1,
    });
    const q = { ...drawn.inputs.q, data: drawn.inputs.q.data.map(() => 1) };
    const k = { ...drawn.inputs.k, data: drawn.inputs.k.data.map((_, at) => score / 16 + (Math.floor(at / 32) % 4)) };
    const item = roundedAttentionCase({ ...drawn, inputs: { ...drawn.inputs, q, k } }, 'bfloat16');
    const actual = await run(item);
    const expected = attentionForwardReference(item.inputs.q, item.inputs.k, item.inputs.v, item.options);
    expectClose('lse', actual.lse, expected.lse, { maxAbs: 2 ** -23 * Math.abs(score) + 1e-6 });
    const { maxAbs: bound = 0 } = randomTolerance('bfloat16', expected.out);
    expectClose('out', actual.out, expected.out, { maxAbs: bound + 2e-7 * Math.abs(score) });
  });

  test('flash-attention 2466: causal, softcap 10, D 128', async () => {
    const options = { causal: true, softcap: 10, softmaxScale: 1 };
    expect(await failures(drawCase(new Random('softcap'), [2, 384, 2, 128], [2, 384, 2, 128], options))).toEqual([]);
  });

  test.each([
    ...[
      [8, 8],
      [40, 80],
      [72, 40],
      [96, 112],
      [112, 96],
      [160, 248],
      [192, 128],
      [224, 16],
      [248, 256],
      [128, 192],
    ],
  ])('flash-attention 1214, 2492, 1487: D %i, Dv %i, grouped heads', async (dim, valueDim) => {
    const random = new Random(`head dims ${dim} ${valueDim}`);
    const item = drawCase(random, [1, 137, 4, dim], [1, 141, 2, dim], { causal: true }, valueDim);
    expect(await failures(item)).toEqual([]);
  });

  test('flash-attention 355, 91, 2777: views give what dense copies give, bitwise', async () => {
    const random = new Random('strides');
    const source = roundedAttentionCase(drawCase(random, [2, 2, 60, 512], [1, 1, 1, 8], {}), 'bfloat16').inputs.q;
    const whole = toTensor(source, 'bfloat16', CUDA).transpose(1, 2).slice(1, 5, 55); // [B, S, H, …]
    // At multiples of 16 bytes, which the kernel reads as they lie, and elsewhere, where it needs copies; and one head
    // for all, as `expand` makes it.
    const views = [
      [whole.slice(3, 8, 72), whole.slice(3, 72, 136), whole.slice(3, 136, 200)],
      [whole.slice(3, 3, 67), whole.slice(3, 67, 131), whole.slice(3, 131, 195)],
      [whole.slice(3, 0, 64), whole.slice(2, 0, 1).slice(3, 64, 128).expand([2, 50, 2, 64]), whole.slice(3, 128, 192)],
    ] as [Tensor, Tensor, Tensor][];
    for (const set of views) {
      expect(set.some((view) => view.isContiguous)).toBe(false);
      const dense = set.map((view) => view.contiguous()) as [Tensor, Tensor, Tensor];
      const [actual, expected] = [attentionForward(...set), attentionForward(...dense)];
      expectBitwiseEqual('out', await actual.out.data(), await expected.out.data());
      expectBitwiseEqual('lse', await actual.lse.data(), await expected.lse.data());
    }
  });

  test('flash-attention 1133: window (S, 0), window (S - 1, 0) and causal are equal within rounding', async () => {
    const item = drawCase(new Random('windows'), [1, 390, 2, 64], [1, 390, 2, 64], { causal: true });
    const causal = await run(item);
    for (const left of [390, 389]) {
      const windowed = await run({ ...item, options: { window: [left, 0] } });
      expect(failuresOf(windowed, causal, (name) => ({ maxAbs: 2 ** -8 * maxAbs(causal[name].data) }))).toEqual([]);
    }
  });

  test.each([64, 128, 256])('flash-attention 1570: a sequence alone and packed, D %i', async (dim) => {
    const lengths = [200, 1, 130, 64];
    const cu = lengths.reduce((offsets, length) => [...offsets, offsets.at(-1)! + length], [0]);
    const shape = [cu.at(-1)!, 2, dim];
    const item = drawCase(new Random(`alone ${dim}`), shape, shape, { causal: true, cuSeqlensQ: cu, cuSeqlensK: cu });
    const together = await run(item);
    for (const [n, length] of lengths.entries()) {
      const part = (tensor: Float64Tensor) => {
        const { data } = sliceOf(tensor, 0, cu[n], cu[n + 1]);
        return { shape: [1, length, 2, dim], data };
      };
      const { q, k, v } = item.inputs;
      const alone = await run({ ...item, inputs: { q: part(q), k: part(k), v: part(v) }, options: { causal: true } });
      const same = sliceOf(together.out, 0, cu[n], cu[n + 1]);
      expectClose('out', { ...same, shape: alone.out.shape }, alone.out, randomTolerance('bfloat16', alone.out));
    }
  });

  test('GLM-5.3 4: inputs are bit-identical after the call', async () => {
    const item = drawCase(new Random('inputs'), [1, 300, 4, 128], [1, 300, 2, 128], { causal: true });
    const tensors = Object.values(item.inputs).map((tensor: Float64Tensor) => toTensor(tensor, 'bfloat16', CUDA));
    const before = await Promise.all(tensors.map((tensor) => tensor.data()));
    const { out } = attentionForward(...(tensors as [Tensor, Tensor, Tensor]), { causal: true });
    await out.data();
    for (const [n, tensor] of tensors.entries()) expectBitwiseEqual('input', await tensor.data(), before[n]);
  });

  test('a softmax without keys, and with the sink alone', async () => {
    for (const sink of [undefined, { shape: [2], data: Float64Array.of(0.5, -3) }]) {
      const item = drawCase(new Random('no keys'), [1, 5, 2, 64], [1, 0, 2, 64], { ...(sink && { sink }) });
      const { out, lse } = await run(item);
      expect(out.data.every((value) => value === 0)).toBe(true);
      const logits = sink ? sink.data : [-Infinity, -Infinity];
      expect([...lse.data]).toEqual(Array.from({ length: 10 }, (_, at) => logits[Math.floor(at / 5)]));
    }
  });

  test('no queries at all', async () => {
    const item = drawCase(new Random('no queries'), [1, 0, 2, 64], [1, 5, 2, 64], {});
    const { out, lse } = await run(item);
    expect([out.shape, lse.shape]).toEqual([
      [1, 0, 2, 64],
      [1, 2, 0],
    ]);
    expect(await fromTensor(Tensor.zeros([0], { device: CUDA }))).toEqual({ shape: [0], data: new Float64Array() });
  });
});
