import {
  attentionBackward,
  attentionForward,
  kdaBackward,
  kdaForward,
  type AttentionBackwardOptions,
  type KdaForwardOptions,
  type Tensor,
} from '../index';
import { attentionBackwardReference, attentionForwardReference } from '../reference/attention';
import { kdaBackwardReference, kdaForwardReference } from '../reference/kda';
import { type Tensors } from './precision';
import { type Random } from './random';

/** An operation with options, forward and backward, on inputs of its own. */
export interface CheckCase {
  readonly operation: 'attention' | 'kda';
  readonly name: string;
  /** Inputs named here are float32 whatever the dtype of the case. */
  readonly float32: readonly string[];
  draw(random: Random): Tensors;
  reference(inputs: Tensors): Tensors;
  run(inputs: Readonly<Record<string, Tensor>>): Readonly<Record<string, Tensor>>;
}

type AttentionCaseOptions = Pick<
  AttentionBackwardOptions,
  'causal' | 'window' | 'softmaxScale' | 'softcap' | 'deterministic'
> & { readonly cuSeqlensQ?: number[]; readonly cuSeqlensK?: number[] };

interface AttentionShape {
  readonly rowsQ?: number;
  readonly rowsK?: number;
  readonly heads?: number;
  readonly kvHeads?: number;
  readonly dim?: number;
  readonly valueDim?: number;
  readonly sink?: boolean;
}

function attentionCase(name: string, options: AttentionCaseOptions, shape: AttentionShape = {}): CheckCase {
  const { rowsQ = 70, rowsK = rowsQ, heads = 2, kvHeads = heads, dim = 24, valueDim = dim, sink = false } = shape;
  const { deterministic, ...forwardOptions } = options;
  const batch = options.cuSeqlensQ ? [] : [2];
  return {
    operation: 'attention',
    name,
    float32: ['sink'],
    draw: (random) => ({
      q: random.tensor([...batch, rowsQ, heads, dim]),
      k: random.tensor([...batch, rowsK, kvHeads, dim]),
      v: random.tensor([...batch, rowsK, kvHeads, valueDim]),
      dOut: random.tensor([...batch, rowsQ, heads, valueDim]),
      ...(sink && { sink: random.tensor([heads]) }),
    }),
    reference: ({ q, k, v, dOut, sink: logits }) => {
      const all = { ...forwardOptions, ...(logits && { sink: logits }) };
      return { ...attentionForwardReference(q, k, v, all), ...attentionBackwardReference(dOut, q, k, v, all) };
    },
    run: ({ q, k, v, dOut, sink: logits }) => {
      const all = { ...forwardOptions, ...(logits && { sink: logits }) };
      const { out, lse } = attentionForward(q, k, v, all);
      return { out, lse, ...attentionBackward(dOut, q, k, v, out, lse, { ...all, deterministic }) };
    },
  };
}

type KdaCaseOptions = Pick<
  KdaForwardOptions,
  'scale' | 'qkL2Norm' | 'betaLogits' | 'allowNegEigval' | 'stateLayout' | 'saveIntermediates'
> & { readonly cuSeqlens?: number[]; readonly lowerBound?: number };

interface KdaShape {
  readonly tokens?: number;
  readonly heads?: number;
  readonly valueHeads?: number;
  readonly keyDim?: number;
  readonly valueDim?: number;
  /** Inputs beside q, k, v, g and beta; `finalState` asks for one and draws its gradient. */
  readonly with?: readonly ('aLog' | 'dtBias' | 'initialState' | 'finalState')[];
  /** Mean log decay of a token; drawn as raw gate input where there is a gate. */
  readonly decay?: number;
}

function kdaCase(name: string, options: KdaCaseOptions, shape: KdaShape = {}): CheckCase {
  const { tokens = 70, heads = 2, valueHeads = heads, keyDim = 24, valueDim = keyDim, decay = 0.3 } = shape;
  const { lowerBound, saveIntermediates, ...shared } = options;
  const parts = new Set(shape.with);
  const gated = parts.has('aLog') || lowerBound !== undefined;
  const batch = options.cuSeqlens ? 1 : 2;
  const sequences = options.cuSeqlens ? options.cuSeqlens.length - 1 : batch;
  const stateDims = options.stateLayout === 'vk' ? [valueDim, keyDim] : [keyDim, valueDim];
  const stateShape = [sequences, valueHeads, ...stateDims];
  /** The options of both implementations: they differ only in the type of the tensors. */
  const complete = <T>(inputs: Readonly<Record<string, T>>) => ({
    ...shared,
    ...(parts.has('initialState') && { initialState: inputs['initialState'] }),
    ...(gated && {
      gate: {
        ...(parts.has('aLog') && { aLog: inputs['aLog'] }),
        ...(parts.has('dtBias') && { dtBias: inputs['dtBias'] }),
        ...(lowerBound !== undefined && { lowerBound }),
      },
    }),
  });
  return {
    operation: 'kda',
    name,
    float32: ['aLog', 'dtBias', 'initialState', 'dFinalState'],
    draw: (random) => ({
      q: random.tensor([batch, tokens, heads, keyDim]),
      // Keys of about unit length, as a layer makes them: with longer ones the state grows without bound.
      k: random.tensor([batch, tokens, heads, keyDim], () => random.normal() / Math.sqrt(keyDim)),
      v: random.tensor([batch, tokens, valueHeads, valueDim]),
      g: random.tensor(
        [batch, tokens, valueHeads, keyDim],
        gated ? undefined : () => decay * Math.log(random.uniform() + 1e-3),
      ),
      beta: random.tensor([batch, tokens, valueHeads], options.betaLogits ? undefined : () => random.uniform()),
      dOut: random.tensor([batch, tokens, valueHeads, valueDim]),
      ...(parts.has('aLog') && { aLog: random.tensor([valueHeads], () => random.normal() / 2) }),
      ...(parts.has('dtBias') && { dtBias: random.tensor([valueHeads, keyDim]) }),
      ...(parts.has('initialState') && { initialState: random.tensor(stateShape) }),
      ...(parts.has('finalState') && { dFinalState: random.tensor(stateShape) }),
    }),
    reference: (inputs) => {
      const all = complete(inputs);
      const { out, finalState } = kdaForwardReference(inputs as never, all);
      const gradients = kdaBackwardReference(inputs['dOut'], inputs as never, {
        ...all,
        dFinalState: inputs['dFinalState'],
      });
      const { dInitialState, ...others } = gradients;
      return {
        out,
        ...(parts.has('finalState') && { finalState }),
        ...others,
        ...(parts.has('initialState') && { dInitialState }),
      };
    },
    run: (inputs) => {
      const { q, k, v, g, beta, dOut, dFinalState } = inputs;
      const outputFinalState = parts.has('finalState');
      const { out, finalState, saved } = kdaForward(q, k, v, g, beta, {
        ...complete(inputs),
        outputFinalState,
        saveIntermediates,
      });
      using _ = saved;
      const gradients = kdaBackward(dOut, saved, dFinalState && { dFinalState });
      return { out, ...(finalState && { finalState }), ...gradients };
    },
  };
}

/** Every option of both operations, alone and together. */
export const CHECK_CASES: readonly CheckCase[] = [
  attentionCase('full', {}),
  attentionCase('causal', { causal: true }),
  attentionCase('window', { window: [9, 4] }),
  attentionCase('causal window', { causal: true, window: [16, Infinity] }),
  attentionCase('more keys than queries', { causal: true }, { rowsQ: 33, rowsK: 70 }),
  attentionCase('more queries than keys', { causal: true }, { rowsQ: 70, rowsK: 33 }),
  attentionCase('scale', { softmaxScale: 0.5 }),
  attentionCase('softcap', { softcap: 2, causal: true }),
  attentionCase('sink', { causal: true }, { sink: true }),
  attentionCase('grouped heads', {}, { heads: 4, kvHeads: 2 }),
  attentionCase('values of another size', {}, { dim: 40, valueDim: 17 }),
  attentionCase('head dimension 128', { causal: true }, { dim: 128 }),
  attentionCase('deterministic', { deterministic: true }, { heads: 4, kvHeads: 2 }),
  attentionCase(
    'packed sequences',
    { causal: true, cuSeqlensQ: [0, 33, 33, 70], cuSeqlensK: [0, 40, 45, 70] },
    { rowsQ: 70, rowsK: 70 },
  ),
  attentionCase(
    'everything',
    { causal: true, window: [20, 0], softcap: 5, cuSeqlensQ: [0, 33, 70], cuSeqlensK: [0, 20, 70] },
    { rowsQ: 70, heads: 4, kvHeads: 2, dim: 32, valueDim: 24, sink: true },
  ),
  kdaCase('plain', {}),
  kdaCase('recomputed intermediates', { saveIntermediates: false }),
  kdaCase('saved intermediates', { saveIntermediates: true }),
  kdaCase('scale', { scale: 0.5 }),
  kdaCase('L2 norm', { qkL2Norm: true }),
  kdaCase('softplus gate', {}, { with: ['aLog', 'dtBias'] }),
  kdaCase('bounded gate', { lowerBound: -5 }, { with: ['aLog', 'dtBias'] }),
  kdaCase('bounded gate without A', { lowerBound: -5 }, { with: ['dtBias'] }),
  kdaCase('beta from logits', { betaLogits: true }),
  kdaCase('negative eigenvalues', { betaLogits: true, allowNegEigval: true, qkL2Norm: true }),
  kdaCase('grouped value heads', {}, { heads: 2, valueHeads: 4 }),
  kdaCase('keys and values of other sizes', {}, { keyDim: 40, valueDim: 17 }),
  kdaCase('head dimension 128', { qkL2Norm: true }, { heads: 1, keyDim: 128 }),
  kdaCase('strong decay', {}, { decay: 20 }),
  kdaCase('states', {}, { with: ['initialState', 'finalState'] }),
  kdaCase('states, values first', { stateLayout: 'vk' }, { with: ['initialState', 'finalState'], valueDim: 17 }),
  kdaCase('packed sequences', { cuSeqlens: [0, 65, 65, 100] }, { tokens: 100, with: ['initialState', 'finalState'] }),
  kdaCase(
    'everything',
    { qkL2Norm: true, betaLogits: true, lowerBound: -5, scale: 0.3, cuSeqlens: [0, 20, 100] },
    { tokens: 100, valueHeads: 4, keyDim: 32, with: ['aLog', 'dtBias', 'initialState', 'finalState'] },
  ),
];
