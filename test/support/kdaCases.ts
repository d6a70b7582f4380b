import type { Float64Tensor } from '../../lib/reference/float64';
import {
  kdaBackwardReference,
  kdaForwardReference,
  type KdaReferenceGradients,
  type KdaReferenceInputs,
  type KdaReferenceOptions,
  type KdaReferenceOutputs,
} from '../../lib/reference/kda';
import type { CaseSize } from './attentionCases';
import { rounded, type Operand } from './dtypes';
import type { Random } from './random';

export interface KdaCase {
  readonly title: string;
  readonly inputs: KdaReferenceInputs;
  readonly dOut: Float64Tensor;
  readonly dFinalState?: Float64Tensor;
  readonly options: KdaReferenceOptions;
}

const HEAD_DIMS = [1, 8, 16, 20, 60, 64, 100, 128, 256];
const MOST_STATE_UPDATES = 1.2e6; // keeps the reference under a tenth of a second

/** Draws shapes and options over everything that KDA supports; small cases take their head dimensions from a list. */
export function randomKdaCase(random: Random, size: CaseSize, headDims = HEAD_DIMS): KdaCase {
  const tiny = size === 'tiny';
  const drawDim = () => (tiny ? random.integer(1, 5) : random.pick(headDims));
  const [K, V] = [drawDim(), drawDim()];
  const H = random.integer(1, 2);
  const HV = H * random.integer(1, 3);
  const packed = random.chance(0.4);
  const count = packed ? random.integer(1, 4) : random.integer(1, 2);
  const budget = Math.max(1, Math.floor(MOST_STATE_UPDATES / (count * HV * K * V)));
  const longest = Math.min(tiny ? 7 : random.pick([20, 70, 200]), budget);
  const cuSeqlens = packed ? random.cuSeqlens(count, longest) : undefined;
  const spareRows = packed && random.chance(0.5) ? random.integer(1, 5) : 0;
  const T = cuSeqlens ? Math.max(1, cuSeqlens.at(-1)! + spareRows) : random.integer(1, longest);
  const B = packed ? 1 : count;
  const stateLayout = random.pick(['kv', 'vk', undefined] as const);
  const drawState = () => random.tensor([count, HV, ...(stateLayout === 'vk' ? [V, K] : [K, V])]);
  const options: KdaReferenceOptions = {
    ...drawKdaOptions(random, HV, K),
    ...(random.chance(0.5) && { initialState: drawState() }),
    ...(stateLayout && { stateLayout }),
    ...(cuSeqlens && { cuSeqlens }),
  };
  const dFinalState = random.chance(0.5) ? drawState() : undefined;
  return {
    title: kdaTitle([B, T, H, K], [HV, V], options, dFinalState !== undefined),
    inputs: drawKdaInputs(random, [B, T], { H, HV, K, V }, options),
    dOut: random.tensor([B, T, HV, V]),
    ...(dFinalState && { dFinalState }),
    options,
  };
}

export interface KdaSizes {
  readonly B?: number;
  readonly T: number;
  readonly heads?: readonly [H: number, HV: number];
  readonly dims: readonly [K: number, V: number];
}

/** A case with the L2 norm and β in [0, 1]; `g` draws the log decays or what the gate takes. */
export function drawKdaCase(random: Random, sizes: KdaSizes, options: KdaCase['options'], g: () => number): KdaCase {
  const { B = 1, T, heads: [H, HV] = [2, 2], dims: [K, V] } = sizes; // prettier-ignore
  const inputs = {
    ...{ q: random.tensor([B, T, H, K]), k: random.tensor([B, T, H, K]), v: random.tensor([B, T, HV, V]) },
    ...{ g: random.tensor([B, T, HV, K], g), beta: random.tensor([B, T, HV], () => random.uniform()) },
  };
  return { title: '', inputs, dOut: random.tensor([B, T, HV, V]), options: { qkL2Norm: true, ...options } };
}

/** A case with every option: softplus gate, logits, states, L2 norm; grouped heads. Packed with `cuSeqlens`. */
export function fullKdaCase(random: Random, sizes: KdaSizes, cuSeqlens?: readonly number[]): KdaCase {
  const { B = 1, T, heads: [H, HV] = [2, 4], dims: [K, V] } = sizes; // prettier-ignore
  const sequences = cuSeqlens ? cuSeqlens.length - 1 : B;
  const state = () => random.tensor([sequences, HV, K, V]);
  return {
    title: 'every option',
    inputs: {
      q: random.tensor([B, T, H, K]),
      k: random.tensor([B, T, H, K]),
      v: random.tensor([B, T, HV, V]),
      g: random.tensor([B, T, HV, K]),
      beta: random.tensor([B, T, HV]),
    },
    dOut: random.tensor([B, T, HV, V]),
    dFinalState: state(),
    options: {
      qkL2Norm: true,
      betaLogits: true,
      allowNegEigval: true,
      gate: { aLog: random.tensor([HV]), dtBias: random.tensor([HV, K]) },
      initialState: state(),
      ...(cuSeqlens && { cuSeqlens }),
    },
  };
}

/** The case with `map` over what has a row a token: q, k, v, g, beta and dOut. */
export function withTokens(item: KdaCase, map: (tensor: Float64Tensor) => Float64Tensor): KdaCase {
  const { q, k, v, g, beta } = item.inputs;
  return { ...item, inputs: { q: map(q), k: map(k), v: map(v), g: map(g), beta: map(beta) }, dOut: map(item.dOut) };
}

/** The case as a library with operands of `dtype` sees it; g and beta have their own dtype, states float32. */
export function roundedKdaCase(item: KdaCase, dtype: Operand, gateDtype: Operand = 'float32'): KdaCase {
  const { q, k, v, g, beta } = item.inputs;
  const { initialState, gate } = item.options;
  const to32 = (tensor: Float64Tensor) => rounded(tensor, 'float32');
  return {
    ...item,
    inputs: {
      ...{ q: rounded(q, dtype), k: rounded(k, dtype), v: rounded(v, dtype) },
      ...{ g: rounded(g, gateDtype), beta: rounded(beta, gateDtype) },
    },
    dOut: rounded(item.dOut, dtype),
    ...(item.dFinalState && { dFinalState: to32(item.dFinalState) }),
    options: {
      ...item.options,
      ...(initialState && { initialState: to32(initialState) }),
      ...(gate && {
        gate: {
          ...(gate.aLog && { aLog: to32(gate.aLog) }),
          ...(gate.dtBias && { dtBias: to32(gate.dtBias) }),
          ...(gate.lowerBound !== undefined && { lowerBound: Math.fround(gate.lowerBound) }),
        },
      }),
    },
  };
}

/** All results of the float64 reference; dInitialState only where the case has an initial state, as in the library. */
export function kdaReference(item: KdaCase): Omit<KdaReferenceOutputs & KdaReferenceGradients, 'dInitialState'> & {
  readonly dInitialState?: Float64Tensor;
} {
  const { inputs, options, dOut, dFinalState } = item;
  const { dInitialState, ...gradients } = kdaBackwardReference(dOut, inputs, {
    ...options,
    ...(dFinalState && { dFinalState }),
  });
  const outputs = kdaForwardReference(inputs, options);
  return { ...outputs, ...gradients, ...(options.initialState && { dInitialState }) };
}

/** sum(out · dOut) + sum(finalState · dFinalState) of the float64 reference. */
export function kdaLoss({ inputs, options, dOut, dFinalState }: KdaCase): number {
  const { out, finalState } = kdaForwardReference(inputs, options);
  const sum = out.data.reduce((total, value, n) => total + value * dOut.data[n], 0);
  return dFinalState ? finalState.data.reduce((total, value, n) => total + value * dFinalState.data[n], sum) : sum;
}

/** Each input that has a gradient, with the gradient's name. */
export function kdaInputTensors({
  inputs,
  options,
}: KdaCase): [input: Float64Tensor, gradient: keyof KdaReferenceGradients][] {
  const { aLog, dtBias } = options.gate ?? {};
  const optional: [Float64Tensor | undefined, keyof KdaReferenceGradients][] = [
    [options.initialState, 'dInitialState'],
    [aLog, 'dALog'],
    [dtBias, 'dDtBias'],
  ];
  return [
    [inputs.q, 'dq'],
    [inputs.k, 'dk'],
    [inputs.v, 'dv'],
    [inputs.g, 'dg'],
    [inputs.beta, 'dbeta'],
    ...optional.filter((pair): pair is [Float64Tensor, keyof KdaReferenceGradients] => pair[0] !== undefined),
  ];
}

function drawKdaOptions(random: Random, HV: number, K: number): KdaReferenceOptions {
  const gateKind = random.pick(['given', 'given', 'softplus', 'bounded'] as const);
  const withALog = gateKind === 'softplus' || random.chance(0.6);
  const biasShape = random.chance(0.5) ? [HV, K] : [HV * K];
  const betaLogits = random.chance(0.5);
  return {
    ...(random.chance(0.3) && { scale: random.between(0.2, 1.5) }),
    ...(random.chance(0.5) && { qkL2Norm: true }),
    ...(gateKind !== 'given' && {
      gate: {
        ...(withALog && { aLog: random.tensor([HV], () => random.between(-1, 1)) }),
        ...(random.chance(0.6) && { dtBias: random.tensor(biasShape) }),
        ...(gateKind === 'bounded' && { lowerBound: random.pick([-5, -1.5, -0.25]) }),
      },
    }),
    ...(betaLogits && { betaLogits }),
    ...(betaLogits && random.chance(0.5) && { allowNegEigval: true }),
  };
}

function drawKdaInputs(
  random: Random,
  [B, T]: readonly [number, number],
  { H, HV, K, V }: Record<'H' | 'HV' | 'K' | 'V', number>,
  { qkL2Norm, gate, betaLogits }: KdaReferenceOptions,
): KdaReferenceInputs {
  // Keys of norm at most 1 without the L2 norm: larger ones make the recurrence itself grow without bound.
  const rows = () => (qkL2Norm ? random.tensor([B, T, H, K]) : random.rows([B, T, H, K], 0.3, 1));
  const decays: readonly (() => number)[] = [
    () => random.between(-0.1, 0),
    () => random.between(-3, 0),
    () => random.pick([0, -0.01, -5, -20]),
    () => random.pick([0, -0.2, -1000]),
    () => random.pick([-0.1, -1, -Infinity]),
  ];
  return {
    q: rows(),
    k: rows(),
    v: random.tensor([B, T, HV, V]),
    g: random.tensor([B, T, HV, K], gate ? () => 2 * random.normal() : random.pick(decays)),
    beta: random.tensor(
      [B, T, HV],
      betaLogits ? () => 2 * random.normal() : () => random.pick([0, 1, random.uniform()]),
    ),
  };
}

function kdaTitle(
  q: readonly number[],
  [HV, V]: readonly [number, number],
  options: KdaReferenceOptions,
  hasDFinalState: boolean,
): string {
  const { scale, qkL2Norm, gate, betaLogits, allowNegEigval, initialState, stateLayout, cuSeqlens } = options;
  const gateParts = gate && [gate.lowerBound ?? 'softplus', gate.aLog && 'aLog', gate.dtBias && 'dtBias'];
  return [
    `q [${q.join(',')}] HV ${HV} V ${V}`,
    scale && `scale ${scale.toPrecision(3)}`,
    qkL2Norm && 'norm',
    gateParts && `gate(${gateParts.filter(Boolean).join(' ')})`,
    betaLogits && 'logits',
    allowNegEigval && 'neg',
    initialState && 'initial',
    hasDFinalState && 'final',
    stateLayout,
    cuSeqlens && `cu [${String(cuSeqlens)}]`,
  ]
    .filter(Boolean)
    .join(' ');
}
