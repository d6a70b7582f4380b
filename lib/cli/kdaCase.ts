import { kdaBackward, kdaForward, type KdaForwardOptions, type Tensor } from '../index';
import { kdaBackwardReference, kdaForwardReference, type KdaReferenceOptions } from '../reference/kda';
import { type CheckCase, type CheckRun } from './checkCase';
import { decayTermSizes } from './decayCost';
import { type Tensors } from './precision';
import { type Random } from './random';

export type KdaCaseOptions = Pick<
  KdaForwardOptions,
  'scale' | 'qkL2Norm' | 'betaLogits' | 'allowNegEigval' | 'stateLayout' | 'saveIntermediates'
> & { readonly cuSeqlens?: number[]; readonly lowerBound?: number };

export interface KdaCaseShape {
  readonly tokens?: number;
  readonly heads?: number;
  readonly valueHeads?: number;
  readonly keyDim?: number;
  readonly valueDim?: number;
  /** Inputs beside q, k, v, g and beta; `finalState` asks for one and draws its gradient. */
  readonly with?: readonly ('aLog' | 'dtBias' | 'initialState' | 'finalState')[];
  /** About the mean log decay of a token, negated; without effect where there is a gate. */
  readonly decay?: number;
}

function hasGate(options: KdaCaseOptions, shape: KdaCaseShape): boolean {
  return options.lowerBound !== undefined || (shape.with ?? []).includes('aLog');
}

function draw(options: KdaCaseOptions, shape: KdaCaseShape, random: Random): Tensors {
  const { tokens = 70, heads = 2, valueHeads = heads, keyDim = 24, valueDim = keyDim, decay = 0.3 } = shape;
  const batch = options.cuSeqlens ? 1 : 2;
  const sequences = options.cuSeqlens ? options.cuSeqlens.length - 1 : batch;
  const stateDims = options.stateLayout === 'vk' ? [valueDim, keyDim] : [keyDim, valueDim];
  const drawG = hasGate(options, shape) ? () => random.normal() : () => decay * Math.log(random.uniform() + 1e-3);
  const drawBeta = options.betaLogits ? () => random.normal() : () => random.uniform();
  const all: Tensors = {
    q: random.tensor([batch, tokens, heads, keyDim]),
    // Keys of about unit length, as a layer makes them: with longer ones the state grows without bound.
    k: random.tensor([batch, tokens, heads, keyDim], () => random.normal() / Math.sqrt(keyDim)),
    v: random.tensor([batch, tokens, valueHeads, valueDim]),
    g: random.tensor([batch, tokens, valueHeads, keyDim], drawG),
    beta: random.tensor([batch, tokens, valueHeads], drawBeta),
    dOut: random.tensor([batch, tokens, valueHeads, valueDim]),
    aLog: random.tensor([valueHeads], () => random.normal() / 2),
    dtBias: random.tensor([valueHeads, keyDim]),
    initialState: random.tensor([sequences, valueHeads, ...stateDims]),
    dFinalState: random.tensor([sequences, valueHeads, ...stateDims]),
  };
  const wanted = (shape.with ?? []).map((part) => (part === 'finalState' ? 'dFinalState' : part));
  const names = ['q', 'k', 'v', 'g', 'beta', 'dOut', ...wanted];
  return Object.fromEntries(Object.entries(all).filter(([name]) => names.includes(name)));
}

/** The options of an operation, with those inputs in them that belong there: tensors of the device or of the reference. */
function complete<T>(options: KdaCaseOptions, gated: boolean, inputs: Readonly<Record<string, T>>) {
  const { lowerBound, saveIntermediates: _, ...shared } = options;
  const { initialState, aLog, dtBias } = inputs as Readonly<Record<string, T | undefined>>;
  const gate = { ...(aLog && { aLog }), ...(dtBias && { dtBias }), ...(lowerBound !== undefined && { lowerBound }) };
  return { ...shared, ...(initialState && { initialState }), ...(gated && { gate }) };
}

function reference(inputs: Tensors, options: KdaReferenceOptions): Tensors {
  const { dFinalState } = inputs as Partial<Tensors>;
  const { out, finalState } = kdaForwardReference(inputs as never, options);
  const gradients = kdaBackwardReference(inputs['dOut'], inputs as never, { ...options, dFinalState });
  const { dInitialState, ...others } = gradients;
  return { out, ...others, ...(dFinalState && { finalState }), ...(options.initialState && { dInitialState }) };
}

function run(inputs: Readonly<Record<string, Tensor>>, options: KdaForwardOptions): CheckRun {
  const { q, k, v, g, beta, dOut, dFinalState } = inputs as Readonly<Record<string, Tensor | undefined>> &
    typeof inputs;
  const outputFinalState = dFinalState !== undefined;
  const { out, finalState, saved } = kdaForward(q, k, v, g, beta, { ...options, outputFinalState });
  const backward = () => {
    using kept = saved;
    return { ...kdaBackward(dOut, kept, dFinalState && { dFinalState }) };
  };
  return { outputs: { out, ...(finalState && { finalState }) }, backward };
}

/** KDA with these options. */
export function kdaCase(name: string, options: KdaCaseOptions, shape: KdaCaseShape = {}): CheckCase {
  const gated = hasGate(options, shape);
  const { saveIntermediates } = options;
  return {
    operation: 'kda',
    name,
    float32: ['aLog', 'dtBias', 'initialState', 'dFinalState'],
    draw: (random) => draw(options, shape, random),
    reference: {
      results: (inputs) => reference(inputs, complete(options, gated, inputs)),
      termSizes: (inputs) => decayTermSizes(inputs, complete(options, gated, inputs)),
    },
    run: (inputs) => run(inputs, { ...complete(options, gated, inputs), saveIntermediates }),
  };
}
