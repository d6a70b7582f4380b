import { kdaBackward, kdaForward, type Device, type Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from './arrays';
import { difference, expectBitwiseEqual, failuresOf, maxAbs } from './compare';
import type { Operand } from './dtypes';
import { drawKdaCase, kdaReference, roundedKdaCase, type KdaCase } from './kdaCases';
import { expectSameResults, TOKEN_RESULTS } from './kdaProperties';
import { Random } from './random';
import { readAll, runKda, toTensor, type KdaResults, type KdaRun } from './run';

// What broke other implementations, one test a report, for any device: trigger and right behaviour. Sizes are cut, triggers
// kept. Expected values: what `failures` compares with, the float64 reference, or what a test states.

interface Setting {
  readonly device: Device;
  readonly dtypes: readonly Operand[];
  readonly dims: readonly [K: number, V: number];
  /** As kdaFailures of support/check.ts. */
  readonly failures: (item: KdaCase, run: KdaRun) => Promise<string[]>;
}

/** What flash-linear-attention's own tests allow in bfloat16 (docs/kda.md), as rms(err) / rms(expected). */
export const PUBLIC_RMS_RATIO: Readonly<Record<keyof KdaResults, number>> = {
  ...{ out: 0.005, finalState: 0.005, dq: 0.008, dk: 0.008, dv: 0.008, dg: 0.02, dbeta: 0.02 },
  ...{ dInitialState: 0.008, dALog: 0.008, dDtBias: 0.008 },
};

/** Three standard deviations of three roundings to bfloat16, 1.7e-3 each, of every term. */
const DBETA_FACTOR = 1e-2;

/**
 * How much larger than dβ the terms of dβ = Σ_v dY v + … are, dY = dv / β, taken as a root of a sum of squares. Under strong
 * decay the final state is the last token's alone, whose few large terms may cancel and are most of dβ.
 */
function cancellationOfDBeta({ inputs }: KdaCase, { dv, dbeta }: Pick<KdaResults, 'dv' | 'dbeta'>): number {
  const V = inputs.v.shape[3];
  const rms = (values: Float64Array) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0));
  return rms(dv.data.map((x, at) => (x * inputs.v.data[at]) / inputs.beta.data[Math.floor(at / V)])) / rms(dbeta.data);
}

export function kdaReports(setting: Setting): void {
  const runs = setting.dtypes.map((dtype): KdaRun => ({ dtype, device: setting.device }));
  reportsOfDecays(setting, runs);
  reportsOfShapes(setting, runs);
  reportsOfStates(setting, runs);
  reportsOfStrides(setting, setting.dtypes[0]);
}

function reportsOfDecays({ dims, failures }: Setting, runs: readonly KdaRun[]): void {
  const [K] = dims;

  describe.each([-0.01, -1, -2.5, -3, -5])('cudnn-frontend 1017, fla 649, 701: gates saturated at %d', (g) => {
    test.each(runs)('$dtype: small relative errors, of every gradient', async (run) => {
      const random = new Random(`saturated ${g} ${run.dtype}`);
      const drawn = drawKdaCase(random, { T: 96, heads: [1, 1], dims: [128, 128] }, {}, () => g);
      const item = roundedKdaCase({ ...drawn, dFinalState: random.tensor([1, 1, 128, 128]) }, run.dtype);
      const expected = kdaReference(item);
      const cancelled = cancellationOfDBeta(item, expected);
      const allowed = (name: keyof KdaResults) => {
        if (run.dtype === 'float32') return 1e-5;
        return PUBLIC_RMS_RATIO[name] + (name === 'dbeta' ? DBETA_FACTOR * cancelled : 0);
      };
      expect(failuresOf(await runKda(item, run), expected, (name) => ({ rmsRatio: allowed(name) }))).toEqual([]);
    });
  });

  describe.each(runs)('FlashKDA 7, fla 461, 703: any decay at or below 0, $dtype', (run) => {
    test('g exactly 0 at some tokens, -1000 at others', async () => {
      const random = new Random('decays');
      const draw = () => random.pick([0, 0, -1000, -0.3, -20]);
      expect(await failures(drawKdaCase(random, { T: 150, dims }, {}, draw), run)).toEqual([]);
    });

    test('tokens that forget everything: -Infinity, and -1000 in whole rows', async () => {
      const item = drawKdaCase(new Random('forgetting'), { T: 150, dims }, {}, () => -0.2);
      item.inputs.g.data.forEach((_, at, g) => {
        const token = Math.floor(at / (2 * K));
        if (token % 50 === 17) g[at] = -1000;
        if (token % 64 === 63) g[at] = -Infinity;
      });
      expect(await failures(item, run)).toEqual([]);
    });

    test('an unbounded softplus gate, far into saturation', async () => {
      const random = new Random('softplus');
      const gate = { aLog: random.tensor([2], () => 2), dtBias: random.tensor([2, K]) };
      const draw = () => random.pick([-30, 0, 5, 100]);
      expect(await failures(drawKdaCase(random, { T: 150, dims }, { gate }, draw), run)).toEqual([]);
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
        ...(withBias && { dtBias: random.tensor([4, K]) }),
      };
      const item = drawKdaCase(random, { T: 100, heads: [2, 4], dims }, { gate }, () => 3 * random.normal());
      for (const run of runs) expect(await failures(item, run)).toEqual([]);
    });
  });

  test('fla 1115: gates different in every head and batch: forward and every gradient', async () => {
    const random = new Random('gates by head and batch');
    const gate = { aLog: random.tensor([6]), dtBias: random.tensor([6, K]) };
    const item = drawKdaCase(random, { B: 3, T: 70, heads: [2, 6], dims }, { gate }, () => 0);
    item.inputs.g.data.forEach((_, at, g) => {
      const row = Math.floor(at / K);
      const [batch, head] = [Math.floor(row / (70 * 6)), row % 6];
      g[at] = 0.5 * head - 2 * batch + 0.1 * random.normal();
    });
    for (const run of runs) expect(await failures(item, run)).toEqual([]);
  });
}

function reportsOfShapes({ failures, dims }: Setting, runs: readonly KdaRun[]): void {
  describe('cuLA 38, 43: the last partial chunk', () => {
    const lengths = [1, 15, 16, 17, 63, 64, 65, 500, 1500];
    const small = dims.map((dim) => Math.min(dim, 64)) as [number, number];

    test.each(lengths)('dense, T %i', async (T) => {
      const random = new Random(`length ${T}`);
      const item = drawKdaCase(random, { T, heads: [1, 1], dims: small }, {}, () => random.between(-1, 0));
      for (const run of runs) expect(await failures(item, run)).toEqual([]);
    });

    test('packed, all of these lengths', async () => {
      const random = new Random('lengths packed');
      const cuSeqlens = lengths.reduce((offsets, length) => [...offsets, offsets.at(-1)! + length], [0]);
      const sizes = { T: cuSeqlens.at(-1)!, heads: [1, 1], dims: small } as const;
      const item = drawKdaCase(random, sizes, { cuSeqlens }, () => random.between(-1, 0));
      expect(await failures(item, runs[0])).toEqual([]);
    });
  });

  test.each(runs)(
    'megagdn-pto 9: β = 1 with duplicate keys, $dtype: bounded error, 20 bitwise equal repeats',
    async (run) => {
      const random = new Random(`duplicate keys ${run.dtype}`);
      const drawn = drawKdaCase(random, { T: 128, heads: [1, 1], dims: [64, 64] }, {}, () => 0);
      drawn.inputs.k.data.forEach((_, at, k) => (k[at] = k[at % 64]!));
      drawn.inputs.beta.data.fill(1);
      const item = roundedKdaCase(drawn, run.dtype);
      const first = await runKda(item, run);
      const { out, dv } = kdaReference(item);
      for (const [name, expected] of Object.entries({ out, dv }) as ['out' | 'dv', Float64Tensor][]) {
        const found = difference(first[name].data, expected.data);
        const bounded = found.maxAbs <= (run.dtype === 'float32' ? 1e-4 : 0.05) * maxAbs(expected.data);
        expect({ name, bounded, found }).toEqual({ name, bounded: true, found });
      }
      for (let n = 1; n < 20; n++) expectSameResults(await runKda(item, run), first);
    },
  );
}

function reportsOfStates({ device, dtypes, dims }: Setting, runs: readonly KdaRun[]): void {
  const [K, V] = dims;
  const dtype = dtypes.includes('float32') ? 'float32' : 'bfloat16';

  test('cuLA 66: initial state given or not, final state asked for or not: the same out, states in float32', async () => {
    const random = new Random('state combinations');
    const item = drawKdaCase(random, { B: 2, T: 70, dims }, {}, () => random.between(-1, 0));
    const { q, k, v, g, beta } = item.inputs;
    const operands = [q, k, v].map((tensor) => toTensor(tensor, 'bfloat16', device)) as [Tensor, Tensor, Tensor];
    const gates = [g, beta].map((tensor) => toTensor(tensor, 'float32', device)) as [Tensor, Tensor];
    const zero = toTensor({ shape: [2, 2, K, V], data: new Float64Array(4 * K * V) }, 'float32', device);
    const run = (options: object) => kdaForward(...operands, ...gates, { qkL2Norm: true, ...options });
    const plain = await run({}).out.data();
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

  test('vllm 51039, fla 103: NaN in one initial state stays there; repeated offsets pass the state through', async () => {
    const random = new Random('NaN state');
    const cuSeqlens = [0, 128, 128, 129, 161, 161];
    const initialState = random.tensor([5, 2, K, V]);
    const drawn = drawKdaCase(random, { T: 161, dims }, { cuSeqlens, initialState }, () => random.between(-1, 0));
    const item = roundedKdaCase({ ...drawn, dFinalState: random.tensor([5, 2, K, V]) }, dtype);
    const run: KdaRun = { ...runs[0], dtype };
    const clean = await runKda(item, run);
    const poisoned = item.options.initialState!.data.slice();
    poisoned.fill(NaN, 2 * 2 * K * V, 3 * 2 * K * V); // the sequence of one token, 128 to 129
    const options = { ...item.options, initialState: { shape: initialState.shape, data: poisoned } };
    const dirty = await runKda({ ...item, options }, run);
    const rows = (from: Float64Tensor, start: number, end: number) => sliceOf(from, 1, start, end).data;
    for (const name of TOKEN_RESULTS) {
      expectBitwiseEqual(`${name} before`, rows(dirty[name], 0, 128), rows(clean[name], 0, 128));
      expectBitwiseEqual(`${name} after`, rows(dirty[name], 129, 161), rows(clean[name], 129, 161));
    }
    expect(rows(dirty.out, 128, 129).every(Number.isNaN)).toBe(true);
    for (const n of [0, 1, 3, 4]) {
      const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, n, n + 1).data;
      expectBitwiseEqual(`finalState ${n}`, entry(dirty.finalState), entry(clean.finalState));
      expectBitwiseEqual(`dInitialState ${n}`, entry(dirty.dInitialState), entry(clean.dInitialState));
      if (n !== 1 && n !== 4) continue;
      expectBitwiseEqual(`finalState ${n}, empty`, entry(clean.finalState), entry(item.options.initialState!));
      expectBitwiseEqual(`dInitialState ${n}, empty`, entry(clean.dInitialState), entry(item.dFinalState!));
    }
  });
}

function reportsOfStrides({ device, dims }: Setting, dtype: Operand): void {
  const random = new Random('strided');

  /** The tensor as the first columns of one with `after` more, which are NaN. */
  const widened = ({ shape, data }: Float64Tensor, after: number, as: Operand): Tensor => {
    const width = shape.at(-1)!;
    const wide = new Float64Array((data.length / width) * (width + after)).fill(NaN);
    data.forEach((value, at) => (wide[Math.floor(at / width) * (width + after) + (at % width)] = value));
    const tensor = toTensor({ shape: [...shape.slice(0, -1), width + after], data: wide }, as, device);
    return tensor.slice(shape.length - 1, 0, width);
  };

  // At multiples of 16 bytes, which a GPU's kernels read as they lie, and elsewhere, where they need copies.
  test.each([32, 3])(
    'cudnn-frontend 1056, fla 627: q, k, v, g, dOut and states in rows wider by %i: as dense copies, bitwise',
    async (after) => {
      const drawn = drawKdaCase(random, { B: 2, T: 70, dims }, {}, () => random.between(-1, 0));
      const item = roundedKdaCase(drawn, dtype);
      const state = random.tensor([2, 2, ...dims]);
      const run = async (make: (tensor: Float64Tensor, as: Operand) => Tensor) => {
        const { q, k, v, g, beta } = item.inputs;
        const options = { qkL2Norm: true, initialState: make(state, 'float32'), outputFinalState: true };
        const [queries, keys, values, dOut] = [q, k, v, item.dOut].map((tensor) => make(tensor, dtype)) as [Tensor, Tensor, Tensor, Tensor]; // prettier-ignore
        const gates = [make(g, 'float32'), toTensor(beta, 'float32', device)] as const;
        const { saved, ...outputs } = kdaForward(queries, keys, values, ...gates, options);
        const gradients = kdaBackward(dOut, saved, { dFinalState: make(state, 'float32') });
        return readAll({ ...outputs, ...gradients });
      };
      const dense = await run((tensor, as) => toTensor(tensor, as, device));
      const strided = await run((tensor, as) => widened(tensor, after, as));
      for (const name of Object.keys(dense) as (keyof typeof dense)[]) {
        expectBitwiseEqual(name, strided[name].data, dense[name].data);
      }
    },
  );
}
