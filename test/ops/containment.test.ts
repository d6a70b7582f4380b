import { systemInfo } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { attentionReference, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { maxAbs } from '../support/compare';
import { withCpu } from '../support/cpu';
import type { Operand } from '../support/dtypes';
import { kdaReference, roundedKdaCase, type KdaCase } from '../support/kdaCases';
import { Random } from '../support/random';
import { runAttention, runKda, type AttentionResults, type KdaResults } from '../support/run';

// A NaN reaches what depends on it by the formulas, and nothing else. Expected values: where the float64 reference is NaN;
// elsewhere the same call without the NaN.

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs } = Math;
const { isNaN } = Number;
const { is } = Object;

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];

/** A copy with NaN in one element of the first head's row of a token: [1, tokens, heads, dim]. */
function poisoned({ shape, data }: Float64Tensor, token: number): Float64Tensor {
  const [heads, dim] = shape.slice(2) as [number, number];
  const copy = data.slice();
  copy[token * heads * dim + Math.floor(dim / 2)] = NaN;
  return { shape, data: copy };
}

/** Fails unless NaN is where it is expected and all other elements are `same` as without it. */
function expectContained<Name extends string>(
  actual: Record<Name, Float64Tensor>,
  reference: Record<Name, Float64Tensor>,
  clean: Record<Name, Float64Tensor>,
  same: (name: Name, actual: number, clean: number) => boolean,
): void {
  for (const name of Object.keys(reference) as Name[]) {
    reference[name].data.forEach((expected, at) => {
      const got = actual[name].data[at];
      if (isNaN(expected) ? isNaN(got) : same(name, got, clean[name].data[at])) return;
      throw new Error(`${name}: element ${at} of [${reference[name].shape.join(', ')}] is ${got}, not ${expected}`);
    });
  }
}

describe.each([
  ['causal', { causal: true }, [150, 150]],
  ['window', { window: [20, 9] }, [131, 170]],
  ['window and softcap', { causal: true, window: [70, 0], softcap: 5 }, [90, 75]],
] as const)('attention, %s', (title, options, [Sq, Sk]) => {
  const random = new Random(`attention containment ${title}`);
  const item: AttentionCase = {
    title,
    inputs: {
      q: random.tensor([1, Sq, 2, 40]),
      k: random.tensor([1, Sk, 1, 40]),
      v: random.tensor([1, Sk, 1, 24]),
    },
    dOut: random.tensor([1, Sq, 2, 24]),
    options,
  };
  const targets = (['q', 'k', 'v', 'dOut'] as const).map((target) => {
    const { inputs, dOut } = item;
    const source = target === 'dOut' ? dOut : inputs[target];
    const bad = poisoned(source, random.integer(0, source.shape[1] - 1));
    const dirty = target === 'dOut' ? { ...item, dOut: bad } : { ...item, inputs: { ...inputs, [target]: bad } };
    return [dirty, attentionReference(dirty) as AttentionResults] as const;
  });

  describe.each(systemInfo().cpu.instructionSets)('%s', (cpuInstructionSet) => {
    test.each(DTYPES)('NaN in q, k, v or dOut, %s', async (dtype) => {
      const run = (next: AttentionCase) =>
        withCpu({ cpuInstructionSet }, () => runAttention(roundedAttentionCase(next, dtype), dtype));
      const clean = await run(item);
      for (const [dirty, reference] of targets) {
        expectContained(await run(dirty), reference, clean, (_, got, before) => is(got, before));
      }
    });
  });
});

describe.each([
  ['given decays', { qkL2Norm: true }],
  ['every option', { qkL2Norm: true, betaLogits: true, gate: { lowerBound: -5 }, stateLayout: 'vk' }],
] as const)('KDA, %s', (title, options) => {
  const random = new Random(`KDA containment ${title}`);
  const [T, H, HV, K, V] = [150, 1, 2, 48, 72];
  const shapes = { q: [1, T, H, K], k: [1, T, H, K], v: [1, T, HV, V], g: [1, T, HV, K], beta: [1, T, HV] };
  const inputs = {
    q: random.tensor(shapes.q),
    k: random.tensor(shapes.k),
    v: random.tensor(shapes.v),
    // Every 7th token forgets much, so that some pairs go by direct decays.
    g: random.tensor(shapes.g, () => -random.uniform() - (random.chance(0.1) ? 40 : 0)),
    beta: random.tensor(shapes.beta, () => random.uniform()),
  };
  const state = () => random.tensor([1, HV, ...('stateLayout' in options ? [V, K] : [K, V])]);
  const item: KdaCase = {
    title,
    inputs,
    dOut: random.tensor([1, T, HV, V]),
    dFinalState: state(),
    options: { ...options, initialState: state() },
  };
  const targets = (['q', 'k', 'v', 'g', 'beta', 'dOut'] as const).map((target) => {
    const source = target === 'dOut' ? item.dOut : inputs[target];
    const token = random.integer(0, T - 1);
    const bad = target === 'beta' ? poisonedBeta(source, token) : poisoned(source, token);
    const dirty = target === 'dOut' ? { ...item, dOut: bad } : { ...item, inputs: { ...inputs, [target]: bad } };
    return [dirty, kdaReference(dirty) as KdaResults] as const;
  });

  describe.each(systemInfo().cpu.instructionSets)('%s', (cpuInstructionSet) => {
    test.each([
      ['float32', 8, true], // in windows of chunks
      ['bfloat16', 1, false], // whole sequences
    ] as const)('NaN in q, k, v, g, beta or dOut, %s, %i threads', async (dtype, cpuThreads, saveIntermediates) => {
      const run = (next: KdaCase) =>
        withCpu({ cpuInstructionSet, cpuThreads }, () =>
          runKda(roundedKdaCase(next, dtype), { dtype, saveIntermediates }),
        );
      const clean = await run(item);
      // Gradients of the chunk are computed another way; the outputs are the same to the bit.
      const roundoff = dtype === 'float32' ? 1e-5 : 0.02;
      const allowed = (name: keyof KdaResults) => (name === 'out' ? 0 : roundoff * maxAbs(clean[name].data));
      const bounds = new Map(Object.keys(clean).map((name) => [name, allowed(name as keyof KdaResults)]));
      const close = (name: string, got: number, before: number) => abs(got - before) <= bounds.get(name)!;
      for (const [dirty, reference] of targets) expectContained(await run(dirty), reference, clean, close);
    });
  });
});

/** [1, tokens, heads] */
function poisonedBeta({ shape, data }: Float64Tensor, token: number): Float64Tensor {
  const copy = data.slice();
  copy[token * shape[2]] = NaN;
  return { shape, data: copy };
}
