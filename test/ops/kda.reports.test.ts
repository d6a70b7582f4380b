import { kdaBackward, kdaForward, WarpgradRangeError, type Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from '../support/arrays';
import { kdaFailures } from '../support/check';
import { difference, expectBitwiseEqual, failuresOf, maxAbs } from '../support/compare';
import { kdaReference, roundedKdaCase, type KdaCase } from '../support/kdaCases';
import { Random } from '../support/random';
import { readAll, runKda, toTensor, type KdaResults } from '../support/run';

// What broke other implementations, one test a report: trigger and right behaviour. Sizes are cut, triggers kept.
// Expected values: the float64 reference, or what a test states.

interface Sizes {
  readonly B?: number;
  readonly T: number;
  readonly heads?: readonly [H: number, HV: number];
  readonly dims?: readonly [K: number, V: number];
}

/** A case with the L2 norm and β in [0, 1]; `g` draws the log decays or what the gate takes. */
function drawCase(random: Random, sizes: Sizes, options: KdaCase['options'], g: () => number): KdaCase {
  const { B = 1, T, heads: [H, HV] = [2, 2], dims: [K, V] = [32, 32] } = sizes;
  const inputs = {
    ...{ q: random.tensor([B, T, H, K]), k: random.tensor([B, T, H, K]), v: random.tensor([B, T, HV, V]) },
    ...{ g: random.tensor([B, T, HV, K], g), beta: random.tensor([B, T, HV], () => random.uniform()) },
  };
  return { title: '', inputs, dOut: random.tensor([B, T, HV, V]), options: { qkL2Norm: true, ...options } };
}

const RUNS = [{ dtype: 'float32' }, { dtype: 'bfloat16' }, { dtype: 'float16' }] as const;

describe.each([-0.01, -1, -2.5, -3, -5])('cudnn-frontend 1017, fla 649, 701: gates saturated at %d', (g) => {
  // rms(err) / rms(expected). bfloat16: what flash-linear-attention's own tests allow (docs/kda.md); float32: rounding.
  const allowed: Record<'float32' | 'bfloat16', (name: keyof KdaResults) => number> = {
    float32: () => 1e-5,
    bfloat16: (name) => ({ out: 0.005, finalState: 0.005, dg: 0.02, dbeta: 0.02 })[name as string] ?? 0.008,
  };

  test.each(['float32', 'bfloat16'] as const)('%s: small relative errors, of every gradient', async (dtype) => {
    const random = new Random(`saturated ${g} ${dtype}`);
    const drawn = drawCase(random, { T: 96, heads: [1, 1], dims: [128, 128] }, {}, () => g);
    const item = roundedKdaCase({ ...drawn, dFinalState: random.tensor([1, 1, 128, 128]) }, dtype);
    const actual = await runKda(item, { dtype });
    const expected = kdaReference(item);
    const failures = failuresOf(actual, expected, (name) => ({ rmsRatio: allowed[dtype](name) }));
    expect(failures).toEqual([]);
  });
});

describe.each(RUNS)('FlashKDA 7, fla 461, 703: any decay at or below 0, $dtype', (run) => {
  test('g exactly 0 at some tokens, -1000 at others', async () => {
    const random = new Random('decays');
    const draw = () => random.pick([0, 0, -1000, -0.3, -20]);
    expect(await kdaFailures(drawCase(random, { T: 150 }, {}, draw), run)).toEqual([]);
  });

  test('tokens that forget everything: -Infinity, and -1000 in whole rows', async () => {
    const random = new Random('forgetting');
    const item = drawCase(random, { T: 150 }, {}, () => -0.2);
    item.inputs.g.data.forEach((_, at) => {
      const token = Math.floor(at / 64);
      if (token % 50 === 17) item.inputs.g.data[at] = -1000;
      if (token % 64 === 63) item.inputs.g.data[at] = -Infinity;
    });
    expect(await kdaFailures(item, run)).toEqual([]);
  });

  test('an unbounded softplus gate, far into saturation', async () => {
    const random = new Random('softplus');
    const gate = { aLog: random.tensor([2], () => 2), dtBias: random.tensor([2, 32]) };
    const draw = () => random.pick([-30, 0, 5, 100]);
    expect(await kdaFailures(drawCase(random, { T: 150 }, { gate }, draw), run)).toEqual([]);
  });
});

describe('tokenspeed 847, fla 1107: the bounded gate is lb·sigmoid(exp(A_log)·(x + bias))', () => {
  test.each([
    ['A_log and dt_bias', true, true],
    ['A_log alone', true, false],
    ['dt_bias alone', false, true],
    ['neither', false, false],
  ])('%s', async (_title, withALog, withBias) => {
    const random = new Random(`bounded ${withALog} ${withBias}`);
    const gate = {
      lowerBound: -5,
      ...(withALog && { aLog: random.tensor([4]) }),
      ...(withBias && { dtBias: random.tensor([4, 32]) }),
    };
    const item = drawCase(random, { T: 100, heads: [2, 4] }, { gate }, () => 3 * random.normal());
    for (const run of RUNS) expect(await kdaFailures(item, run)).toEqual([]);
  });
});

describe('cuLA 38, 43: the last partial chunk', () => {
  const lengths = [1, 15, 16, 17, 63, 64, 65, 500, 1500];
  test.each(lengths)('dense, T %i', async (T) => {
    const random = new Random(`length ${T}`);
    const item = drawCase(random, { T, dims: [16, 24] }, {}, () => random.between(-1, 0));
    expect(await kdaFailures(item, { dtype: 'float32' })).toEqual([]);
    expect(await kdaFailures(item, { dtype: 'bfloat16' })).toEqual([]);
  });

  test('packed, all of these lengths', async () => {
    const random = new Random('lengths packed');
    const cuSeqlens = lengths.reduce((offsets, length) => [...offsets, offsets.at(-1)! + length], [0]);
    const T = cuSeqlens.at(-1)!;
    const item = drawCase(random, { T, dims: [16, 24] }, { cuSeqlens }, () => random.between(-1, 0));
    expect(await kdaFailures(item, { dtype: 'float32' })).toEqual([]);
  });
});

test('cuLA 66: initial state given or not, final state asked for or not: the same out, states in float32', async () => {
  const random = new Random('state combinations');
  const item = drawCase(random, { B: 2, T: 70 }, {}, () => random.between(-1, 0));
  const { q, k, v, g, beta } = item.inputs;
  const operands = [q, k, v].map((tensor) => toTensor(tensor, 'bfloat16')) as [Tensor, Tensor, Tensor];
  const gates = [g, beta].map((tensor) => toTensor(tensor, 'float32')) as [Tensor, Tensor];
  const zero = toTensor({ shape: [2, 2, 32, 32], data: new Float64Array(4096) }, 'float32');
  const run = (options: object) => kdaForward(...operands, ...gates, { qkL2Norm: true, ...options });
  const plain = (await run({}).out.data()) as Uint16Array;
  const finals: ArrayLike<number>[] = [];
  for (const initialState of [undefined, zero]) {
    for (const outputFinalState of [false, true]) {
      const { out, finalState } = run({ ...(initialState && { initialState }), outputFinalState });
      expectBitwiseEqual('out', await out.data(), plain);
      expect(finalState?.dtype).toBe(outputFinalState ? 'float32' : undefined);
      if (finalState) finals.push(await finalState.data());
    }
  }
  expectBitwiseEqual('finalState', finals[1], finals[0]);
});

test('fla 1115: gates different in every head and batch: forward and every gradient', async () => {
  const random = new Random('gates by head and batch');
  const sizes = { B: 3, T: 70, heads: [2, 6] as const };
  const item = drawCase(random, sizes, { gate: { aLog: random.tensor([6]), dtBias: random.tensor([6, 32]) } }, () => 0);
  item.inputs.g.data.forEach((_, at) => {
    const row = Math.floor(at / 32);
    const [batch, head] = [Math.floor(row / (70 * 6)), row % 6];
    item.inputs.g.data[at] = 0.5 * head - 2 * batch + 0.1 * random.normal();
  });
  for (const run of RUNS) expect(await kdaFailures(item, run)).toEqual([]);
});

test('fla 1080, 906: T past 65,536', async () => {
  const random = new Random('long');
  const item = drawCase(random, { T: 65_600, heads: [1, 1], dims: [2, 2] }, {}, () => random.between(-0.5, 0));
  expect(await kdaFailures(item, { dtype: 'float32' })).toEqual([]);
});

describe('cudnn-frontend 1056, fla 627: strides', () => {
  const random = new Random('strided');
  const item = roundedKdaCase(
    drawCase(random, { B: 2, T: 70 }, {}, () => random.between(-1, 0)),
    'float32',
  );
  const widened = ({ shape, data }: Float64Tensor, after: number): Tensor => {
    const width = shape.at(-1)!;
    const wide = new Float64Array((data.length / width) * (width + after)).fill(NaN);
    data.forEach((value, at) => (wide[Math.floor(at / width) * (width + after) + (at % width)] = value));
    const tensor = toTensor({ shape: [...shape.slice(0, -1), width + after], data: wide }, 'float32');
    return tensor.slice(shape.length - 1, 0, width);
  };

  test('q, k, v, g and dOut as the first half of wider tensors, the state with wider rows: as dense copies, bitwise', async () => {
    const state = random.tensor([2, 2, 32, 32]);
    const run = async (make: (tensor: Float64Tensor) => Tensor) => {
      const { q, k, v, g, beta } = item.inputs;
      const options = { qkL2Norm: true, initialState: make(state), outputFinalState: true };
      const { saved, ...outputs } = kdaForward(make(q), make(k), make(v), make(g), toTensor(beta, 'float32'), options);
      const gradients = kdaBackward(make(item.dOut), saved, { dFinalState: make(state) });
      return readAll({ ...outputs, ...gradients });
    };
    const dense = await run((tensor) => toTensor(tensor, 'float32'));
    const strided = await run((tensor) => widened(tensor, 32));
    for (const name of Object.keys(dense) as (keyof typeof dense)[]) {
      expectBitwiseEqual(name, strided[name].data, dense[name].data);
    }
  });

  test('a q whose last dimension is not contiguous is refused', () => {
    const { q, k, v, g, beta } = item.inputs;
    const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
    const turned = toTensor({ shape: [2, 70, 32, 2], data: q.data }, 'float32').transpose(2, 3);
    expect(() => kdaForward(turned, tk, tv, tg, tb)).toThrow(WarpgradRangeError);
    expect(() => kdaForward(turned, tk, tv, tg, tb)).toThrow(
      'kdaForward: q must have stride 1 in its last dimension, got 2; call contiguous() first',
    );
    expect(() => kdaForward(tq, turned, tv, tg, tb)).toThrow('kdaForward: k must have stride 1');
  });
});

test('GLM-5.3 4: a dtBias of shape [HV] is refused', () => {
  const random = new Random('dtBias');
  const { q, k, v, g, beta } = drawCase(random, { T: 5 }, {}, () => -1).inputs;
  const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
  const dtBias = toTensor(random.tensor([2]), 'float32');
  const call = () => kdaForward(tq, tk, tv, tg, tb, { gate: { lowerBound: -5, dtBias } });
  expect(call).toThrow(WarpgradRangeError);
  expect(call).toThrow('kdaForward: gate.dtBias must have shape [64], got [2]');
});

test('vllm 51039, fla 103: NaN in one initial state stays there; repeated offsets pass the state through', async () => {
  const random = new Random('NaN state');
  const cuSeqlens = [0, 128, 128, 129, 161, 161];
  const initialState = random.tensor([5, 2, 32, 32]);
  const drawn = drawCase(random, { T: 161 }, { cuSeqlens, initialState }, () => random.between(-1, 0));
  const item = roundedKdaCase({ ...drawn, dFinalState: random.tensor([5, 2, 32, 32]) }, 'float32');
  const clean = await runKda(item, { dtype: 'float32' });
  const poisoned = item.options.initialState!.data.slice();
  poisoned.fill(NaN, 2 * 2048, 3 * 2048); // the sequence of one token, 128 to 129
  const options = { ...item.options, initialState: { shape: initialState.shape, data: poisoned } };
  const dirty = await runKda({ ...item, options }, { dtype: 'float32' });
  for (const name of ['out', 'dq', 'dk', 'dv', 'dg', 'dbeta'] as const) {
    for (const [start, end] of [
      [0, 128],
      [129, 161],
    ] as const) {
      const part = (from: KdaResults) => sliceOf(from[name], 1, start, end).data;
      expectBitwiseEqual(`${name} of rows ${start} to ${end}`, part(dirty), part(clean));
    }
  }
  expect(sliceOf(dirty.out, 1, 128, 129).data.every(Number.isNaN)).toBe(true);
  for (const n of [0, 1, 3, 4]) {
    const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, n, n + 1).data;
    expectBitwiseEqual(`finalState ${n}`, entry(dirty.finalState), entry(clean.finalState));
    expectBitwiseEqual(`dInitialState ${n}`, entry(dirty.dInitialState), entry(clean.dInitialState));
    if (n !== 1 && n !== 4) continue;
    expectBitwiseEqual(`finalState ${n}, empty`, entry(clean.finalState), entry(item.options.initialState!));
    expectBitwiseEqual(`dInitialState ${n}, empty`, entry(clean.dInitialState), entry(item.dFinalState!));
  }
});

test.each([
  ['q', [257, 8]],
  ['v', [8, 257]],
] as const)(
  'cuLA 41, fla 639: a head dimension of %s outside the supported ones is refused with their list',
  (name, dims) => {
    const { q, k, v, g, beta } = drawCase(new Random('head dims'), { T: 2, dims }, {}, () => -1).inputs;
    const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
    expect(() => kdaForward(tq, tk, tv, tg, tb)).toThrow(
      `kdaForward: the head dimension of ${name} must be 1 to 256, got 257`,
    );
  },
);

test.each(RUNS)(
  'megagdn-pto 9: β = 1 with duplicate keys, $dtype: bounded error, 20 bitwise equal repeats',
  async (run) => {
    const random = new Random(`duplicate keys ${run.dtype}`);
    const drawn = drawCase(random, { T: 128, heads: [1, 1], dims: [64, 64] }, {}, () => 0);
    drawn.inputs.k.data.forEach((_, at, k) => (k[at] = k[at % 64]!));
    drawn.inputs.beta.data.fill(1);
    const item = roundedKdaCase(drawn, run.dtype);
    const first = await runKda(item, run);
    const { out, dv } = kdaReference(item);
    for (const [name, expected] of [
      ['out', out],
      ['dv', dv],
    ] as const) {
      const found = difference(first[name].data, expected.data);
      expect({
        name,
        bounded: found.maxAbs <= (run.dtype === 'float32' ? 1e-4 : 0.05) * maxAbs(expected.data),
      }).toEqual({
        name,
        bounded: true,
      });
    }
    for (let n = 1; n < 20; n++) {
      const again = await runKda(item, run);
      for (const name of Object.keys(first) as (keyof KdaResults)[]) {
        expectBitwiseEqual(name, again[name].data, first[name].data);
      }
    }
  },
);
