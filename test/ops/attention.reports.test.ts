import { attentionBackward, attentionForward, Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from '../support/arrays';
import { attentionReference, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { difference, expectBitwiseEqual, expectClose, expectZeroRows, failuresOf, maxAbs } from '../support/compare';
import { Random } from '../support/random';
import { fromTensor, readAll, runAttention, toTensor, type AttentionResults } from '../support/run';

// What broke other implementations, one test a report: trigger and right behaviour. Sizes are cut, triggers kept.
// Expected values: the float64 reference, or what a test states.

interface Sizes {
  readonly rows: readonly [q: readonly number[], k: readonly number[]];
  readonly heads?: readonly [number, number];
  readonly dims?: readonly [number, number];
}

function drawCase(random: Random, { rows, heads, dims }: Sizes, options: AttentionCase['options']): AttentionCase {
  const [[H, Hkv], [D, Dv]] = [heads ?? [2, 2], dims ?? [64, 64]];
  const inputs = {
    q: random.tensor([...rows[0], H, D]),
    k: random.tensor([...rows[1], Hkv, D]),
    v: random.tensor([...rows[1], Hkv, Dv]),
  };
  return { title: '', inputs, dOut: random.tensor([...rows[0], H, Dv]), options };
}

describe.each([false, true])('flash-attention 1254, 2562: packed backward with empty segments, causal %s', (causal) => {
  const [some, more] = [
    [0, 0, 38, 64, 64],
    [0, 79, 134, 160, 256],
  ] as const;
  const sizes = { heads: [4, 1], dims: [256, 256] } as const;

  test('keys without queries get gradients of exactly 0', async () => {
    const random = new Random(`empty queries ${causal}`);
    const options = { causal, cuSeqlensQ: some, cuSeqlensK: more };
    const item = roundedAttentionCase(drawCase(random, { ...sizes, rows: [[64], [256]] }, options), 'bfloat16');
    expect(await attentionFailures(item, 'bfloat16')).toEqual([]);
    const { dk, dv } = await runAttention(item, 'bfloat16');
    for (const [name, gradient] of [
      ['dk', dk],
      ['dv', dv],
    ] as const) {
      expectZeroRows(name, gradient, 0, 79);
      expectZeroRows(name, gradient, 160, 256);
    }
  });

  test('queries without keys give 0 and get gradients of exactly 0', async () => {
    const random = new Random(`empty keys ${causal}`);
    const options = { causal, cuSeqlensQ: more, cuSeqlensK: some };
    const item = roundedAttentionCase(drawCase(random, { ...sizes, rows: [[256], [64]] }, options), 'bfloat16');
    expect(await attentionFailures(item, 'bfloat16')).toEqual([]);
    const { out, lse, dq } = await runAttention(item, 'bfloat16');
    for (const [name, result] of [
      ['out', out],
      ['dq', dq],
    ] as const) {
      expectZeroRows(name, result, 0, 79);
      expectZeroRows(name, result, 160, 256);
    }
    expect(new Set(sliceOf(lse, 1, 160, 256).data)).toEqual(new Set([-Infinity]));
  });
});

test('flash-attention 2324, 1228: rows past the last cuSeqlens entry are exactly 0, whatever the memory held', async () => {
  const random = new Random('rows past the end');
  const cu = [0, 3, 8];
  const item = drawCase(random, { rows: [[16], [16]] }, { cuSeqlensQ: cu, cuSeqlensK: cu, causal: true });
  for (const dtype of ['float32', 'float16', 'bfloat16'] as const) {
    const { out, dq, dk, dv } = await runAttention(roundedAttentionCase(item, dtype), dtype);
    for (const [name, result] of Object.entries({ out, dq, dk, dv })) expectZeroRows(name, result, 8, 16);
  }
});

test('flash-attention 1745, 2374: NaN in a neighbouring sequence or past the end reaches no other sequence', async () => {
  const random = new Random('NaN neighbours');
  const cu = [0, 40, 110, 150];
  const item = drawCase(random, { rows: [[160], [160]] }, { cuSeqlensQ: cu, cuSeqlensK: cu });
  const clean = await runAttention(roundedAttentionCase(item, 'bfloat16'), 'bfloat16');
  const withNaN = ({ shape, data }: Float64Tensor): Float64Tensor => ({
    shape,
    data: data.map((value, at) => {
      const row = Math.floor((at * 160) / data.length);
      return (row >= 40 && row < 110) || row >= 150 ? NaN : value;
    }),
  });
  const { q, k, v } = roundedAttentionCase(item, 'bfloat16').inputs;
  const dirty = { ...item, inputs: { q: withNaN(q), k: withNaN(k), v: withNaN(v) }, dOut: withNaN(item.dOut) };
  const results = await runAttention(dirty, 'bfloat16');
  for (const name of ['out', 'dq', 'dk', 'dv'] as const) {
    for (const [start, end] of [
      [0, 40],
      [110, 150],
    ] as const) {
      const part = (from: AttentionResults) => sliceOf(from[name], 0, start, end).data;
      expectBitwiseEqual(`${name} rows ${start} to ${end}`, part(results), part(clean));
    }
    expectZeroRows(name, results[name], 150, 160);
  }
  expect(sliceOf(results.out, 0, 40, 110).data.every(Number.isNaN)).toBe(true);
});

test.each([-300, -1e5])(
  'flash-attention 2082, flashinfer 4267: all scores near %d, the first keys masked',
  async (score) => {
    const random = new Random(`low scores ${score}`);
    const drawn = drawCase(
      random,
      {
        rows: [
          [1, 300],
          [1, 300],
        ],
        dims: [16, 16],
      },
      { window: [20, 0], softmaxScale: 1 },
    );
    const q = { ...drawn.inputs.q, data: drawn.inputs.q.data.map(() => 1) };
    const k = { ...drawn.inputs.k, data: drawn.inputs.k.data.map((_, at) => score / 16 + (Math.floor(at / 32) % 4)) };
    const item = roundedAttentionCase({ ...drawn, inputs: { ...drawn.inputs, q, k } }, 'float32');
    const actual = await runAttention(item, 'float32');
    const expected = attentionReference(item);
    expectClose('lse', actual.lse, expected.lse, { maxAbs: 2 ** -23 * Math.abs(score) + 1e-6 });
    expectClose('out', actual.out, expected.out, { maxAbs: 2e-7 * Math.abs(score) });
    expectClose('dv', actual.dv, expected.dv, { maxAbs: 2e-6 * Math.abs(score) });
  },
);

test('flash-attention 2466: bfloat16, causal, softcap 10, D 128, backward', async () => {
  const item = drawCase(
    new Random('softcap backward'),
    {
      rows: [
        [2, 384],
        [2, 384],
      ],
      heads: [2, 2],
      dims: [128, 128],
    },
    { causal: true, softcap: 10, softmaxScale: 1 },
  );
  expect(await attentionFailures(item, 'bfloat16')).toEqual([]);
});

test('flash-attention 1596, 1678, 2244: 200 backward runs are bitwise equal: grouped, packed, window, D 256', async () => {
  const cu = [0, 50, 50, 97];
  const item = drawCase(
    new Random('deterministic backward'),
    { rows: [[97], [97]], heads: [4, 1], dims: [256, 256] },
    { window: [30, 10], cuSeqlensQ: cu, cuSeqlensK: cu },
  );
  const [q, k, v] = Object.values(item.inputs).map((tensor: Float64Tensor) => toTensor(tensor, 'bfloat16'));
  const dOut = toTensor(item.dOut, 'bfloat16');
  const options = { window: [30, 10] as const, cuSeqlensQ: cu, cuSeqlensK: cu };
  const { out, lse } = attentionForward(q, k, v, options);
  const run = async () => {
    const gradients = attentionBackward(dOut, q, k, v, out, lse, { ...options, deterministic: true });
    const bits = await Promise.all([gradients.dq, gradients.dk, gradients.dv].map((tensor) => tensor.data()));
    [gradients.dq, gradients.dk, gradients.dv].forEach((tensor) => tensor.dispose());
    return bits;
  };
  const first = await run();
  for (let n = 1; n < 200; n++) {
    for (const [at, bits] of (await run()).entries()) expectBitwiseEqual(['dq', 'dk', 'dv'][at], bits, first[at]);
  }
});

describe('flash-attention 1214, 2492, 1487: head dimensions that are no power of two, Dv other than D, grouped heads', () => {
  const dims = [
    [1, 3],
    [40, 80],
    [72, 40],
    [96, 112],
    [112, 96],
    [160, 250],
    [192, 128],
    [224, 17],
    [255, 256],
  ] as const;
  test.each(dims)('D %i, Dv %i', async (D, Dv) => {
    const random = new Random(`head dims ${D} ${Dv}`);
    const item = drawCase(
      random,
      {
        rows: [
          [1, 37],
          [1, 41],
        ],
        heads: [4, 2],
        dims: [D, Dv],
      },
      { causal: true },
    );
    for (const dtype of ['float32', 'bfloat16'] as const) expect(await attentionFailures(item, dtype)).toEqual([]);
  });
});

describe('flash-attention 355, 91, 2777: strides are honoured', () => {
  const random = new Random('strides');
  const item = roundedAttentionCase(
    drawCase(
      random,
      {
        rows: [
          [2, 50],
          [2, 50],
        ],
      },
      { causal: true },
    ),
    'float32',
  );
  const [q, k, v] = Object.values(item.inputs).map((tensor: Float64Tensor) => toTensor(tensor, 'float32'));

  test('dOut expanded over batch, tokens and heads (stride 0)', async () => {
    const row = random.tensor([1, 1, 1, 64]);
    const dOut = toTensor(row, 'float32').expand([2, 50, 2, 64]);
    expect(dOut.strides).toEqual([0, 0, 0, 1]);
    const { out, lse } = attentionForward(q, k, v, { causal: true });
    const actual = await readAll(attentionBackward(dOut, q, k, v, out, lse, { causal: true }));
    const whole = { shape: [2, 50, 2, 64], data: Float64Array.from({ length: 12800 }, (_, at) => row.data[at % 64]) };
    const { dq, dk, dv } = attentionReference(roundedAttentionCase({ ...item, dOut: whole }, 'float32'));
    expect(failuresOf(actual, { dq, dk, dv }, () => ({ maxAbs: 1e-5 * maxAbs(dk.data) }))).toEqual([]);
  });

  test('dOut with stride 0 in its last dimension (from a sum) is refused, and its contiguous copy works', async () => {
    const dOut = Tensor.from(1).view([1, 1, 1, 1]).expand([2, 50, 2, 64]);
    const { out, lse } = attentionForward(q, k, v, { causal: true });
    expect(() => attentionBackward(dOut, q, k, v, out, lse, { causal: true })).toThrow(
      'attentionBackward: dOut must have stride 1 in its last dimension, got 0; call contiguous() first',
    );
    const actual = await readAll(attentionBackward(dOut.contiguous(), q, k, v, out, lse, { causal: true }));
    const ones = { ...item.dOut, data: item.dOut.data.map(() => 1) };
    const { dq, dk, dv } = attentionReference({ ...item, dOut: ones });
    expect(failuresOf(actual, { dq, dk, dv }, () => ({ maxAbs: 1e-5 * maxAbs(dv.data) }))).toEqual([]);
  });

  test('slices of one larger tensor and transposed views give what dense copies give, bitwise', async () => {
    const both = random.tensor([2, 2, 60, 200]); // [B, H, S, q | k | v and some]
    const whole = toTensor(both, 'float32').transpose(1, 2).slice(1, 5, 55); // [B, S, H, …]
    const views = [whole.slice(3, 3, 67), whole.slice(3, 67, 131), whole.slice(3, 131, 195)] as const;
    expect(views[0].isContiguous).toBe(false);
    const dense = views.map((view) => view.contiguous()) as [Tensor, Tensor, Tensor];
    const actual = attentionForward(...views);
    const expected = attentionForward(...dense);
    const gradients = attentionBackward(views[2], ...views, actual.out, actual.lse);
    const denseGradients = attentionBackward(dense[2], ...dense, expected.out, expected.lse);
    for (const name of ['out', 'lse', 'dq', 'dk', 'dv'] as const) {
      const [tensor, other] = [{ ...actual, ...gradients }[name], { ...expected, ...denseGradients }[name]];
      expectBitwiseEqual(name, (await fromTensor(tensor)).data, (await fromTensor(other)).data);
    }
  });
});

describe('flash-attention 2611, 1841: many rows', () => {
  // Each query sees one key, so out is v, dv is dOut, and dq and dk are 0.
  async function expectCopies(q: Tensor, k: Tensor, v: Tensor, dOut: Tensor, options: { window?: [number, number] }) {
    const { out, lse } = attentionForward(q, k, v, options);
    const { dq, dk, dv } = attentionBackward(dOut, q, k, v, out, lse, options);
    expectBitwiseEqual('out', await out.data(), await v.data());
    const zero = new Float32Array(q.size);
    for (const [name, tensor, expected] of [
      ['dv', dv, await dOut.data()],
      ['dq', dq, zero],
      ['dk', dk, zero],
    ] as const) {
      expect({ name, close: difference(await tensor.data(), expected).maxAbs < 1e-6 }).toEqual({ name, close: true });
    }
    [out, lse, dq, dk, dv].forEach((tensor) => tensor.dispose());
  }
  const filled = (size: number) => Float32Array.from({ length: size }, (_, at) => ((at * 7919) % 1009) / 1009 - 0.5);

  test('a batch of 8,300', async () => {
    const data = filled(8300 * 16 * 8);
    using q = Tensor.from(data, [8300, 1, 16, 8]);
    await expectCopies(q, q, q, q, {});
  });

  test('4,200,000 tokens', async () => {
    const data = filled(4_200_000);
    using q = Tensor.from(data, [1, 4_200_000, 1, 1]);
    await expectCopies(q, q, q, q, { window: [0, 0] });
  });
});

test('flash-attention 1133: window (S, 0), window (S - 1, 0) and causal are equal', async () => {
  const sizes = {
    rows: [
      [1, 90],
      [1, 90],
    ],
  } as const;
  const item = roundedAttentionCase(drawCase(new Random('windows'), sizes, { causal: true }), 'float32');
  const causal = await runAttention(item, 'float32');
  for (const left of [90, 89]) {
    const windowed = await runAttention({ ...item, options: { window: [left, 0] } }, 'float32');
    expect(failuresOf(windowed, causal, (name) => ({ maxAbs: 1e-6 * maxAbs(causal[name].data) }))).toEqual([]);
  }
});
