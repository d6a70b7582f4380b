import { boundToThread, hideMark } from './bound-to-thread';
import { native, WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { letGoShare, type TensorShare } from './handles';
import type { KdaBackwardOptions, KdaForwardOptions, KdaGate } from './kda-options';
import { addon, type KdaArguments, type KdaInputs } from './native';
import { disposedOnFailure, expectCuSeqlens, expectHeadDim, expectHeads, Operands } from './operands';
import { nativeStream, type Stream } from './stream';
import { allocateTensor, isTensor, pendingTensor, shareTensor, type Tensor } from './tensor';
import { describe, expectKnownOptions, flagOption, numberOption, sizeOf } from './validate';

export type { KdaBackwardOptions, KdaForwardOptions, KdaGate } from './kda-options';

/** Largest K and V. */
const MAX_DIM = 256;
/** Tokens of a chunk; as in native/ops/kda.h. */
const CHUNK = 64;

export interface KdaForwardResult {
  /** [B, T, HV, V], dtype of q. */
  readonly out: Tensor;
  /** float32, in the state layout, when asked for. */
  readonly finalState?: Tensor;
  /** float32 [chunks, HV, K, V], in the state layout, when asked for; chunks are counted through the sequences in order. */
  readonly chunkStates?: Tensor;
  /** For kdaBackward. */
  readonly saved: KdaSaved;
}

/** Of a call that says `outputFinalState: true`. */
export type KdaForwardResultWithState = KdaForwardResult & { readonly finalState: Tensor };

export interface KdaBackwardResult {
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
  /** Like g: with respect to the log decay, or to the gate's input. */
  readonly dg: Tensor;
  /** Like beta: with respect to β, or to its logits. */
  readonly dbeta: Tensor;
  /** float32, when there was an initial state. */
  readonly dInitialState?: Tensor;
  /** float32 [HV], when there was aLog. */
  readonly dALog?: Tensor;
  /** float32, shaped like dtBias, when there was one. */
  readonly dDtBias?: Tensor;
}

const GATE_KINDS = { given: 0, softplus: 1, bounded: 2 } as const;
/** Without those that say where it runs and what it returns. */
export const KDA_OPTIONS = [
  'scale',
  'initialState',
  'cuSeqlens',
  'qkL2Norm',
  'gate',
  'betaLogits',
  'allowNegEigval',
  'stateLayout',
  'batchInvariant',
  'saveIntermediates',
];
export const GATE_OPTIONS = ['aLog', 'dtBias', 'lowerBound'];
const FORWARD_OPTIONS = [...KDA_OPTIONS, 'outputFinalState', 'outputChunkStates', 'stream'];
/** As messages call them, in the addon's order. */
const INPUT_NAMES = ['q', 'k', 'v', 'g', 'beta', 'gate.aLog', 'gate.dtBias', 'initialState'];

interface Problem {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly g: Tensor;
  readonly beta: Tensor;
  readonly aLog: Tensor | undefined;
  readonly dtBias: Tensor | undefined;
  readonly initialState: Tensor | undefined;
  readonly outShape: readonly number[];
  readonly stateShape: readonly number[];
  readonly numChunks: number;
  readonly arguments: KdaArguments;
}

/** What kdaBackward needs, with shares in the elements of the inputs. */
interface Kept {
  readonly problem: Problem;
  readonly shares: readonly (TensorShare | undefined)[];
  readonly intermediates: Tensor | undefined;
}

let keptIn: (saved: KdaSaved) => Kept;
const MADE_HERE = Symbol('made here');
let makeSaved: (kept: Kept) => KdaSaved;
const NOT_CLONEABLE = boundToThread('a KdaSaved of warpgrad');

/**
 * What kdaBackward needs from kdaForward: shares in the inputs, which stay alive while this does, the options, and the
 * intermediates when `saveIntermediates` asked for them.
 */
export class KdaSaved {
  #kept: Kept | null;
  /** @internal */
  readonly notCloneable = NOT_CLONEABLE;

  /** Made by this package, not merely something with the prototype. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && #kept in value;
  }

  private constructor(key: symbol, kept: Kept) {
    if (key !== MADE_HERE) throw new WarpgradTypeError('KdaSaved: made by kdaForward');
    this.#kept = kept;
  }

  get disposed(): boolean {
    return this.#kept === null;
  }

  /** Bytes of the intermediates, 0 when the backward computes them again. */
  get intermediateBytes(): number {
    return this.#kept?.intermediates?.byteLength ?? 0;
  }

  /** Gives everything up. Harmless when repeated. */
  dispose(): void {
    for (const share of this.#kept?.shares ?? []) if (share) letGoShare(share);
    this.#kept?.intermediates?.dispose();
    this.#kept = null;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  static {
    keptIn = (saved) => {
      if (saved.#kept) return saved.#kept;
      throw new WarpgradError('ERR_WARPGRAD_DISPOSED', 'kdaBackward: saved was disposed');
    };
    makeSaved = (kept) => new KdaSaved(MADE_HERE, kept);
  }
}
hideMark(KdaSaved);

/** Checks the arguments of a forward call. */
function checkProblem(
  caller: string,
  inputs: { q: unknown; k: unknown; v: unknown; g: unknown; beta: unknown },
  options: KdaForwardOptions,
): { problem: Problem; operands: Operands } {
  const operands = Operands.of(caller, 'q', inputs.q);
  const q = operands.ranked('q', inputs.q, '[B, T, H, K]', 4);
  const [batch, tokens, , keyDim] = q.shape as [number, number, number, number];
  const k = operands.shaped('k', inputs.k, q.shape);
  const rankedV = operands.ranked('v', inputs.v, '[B, T, HV, V]', 4);
  const [, , headsV, valueDim] = rankedV.shape as [number, number, number, number];
  const v = operands.shaped('v', rankedV, [batch, tokens, headsV, valueDim]);
  expectHeads(caller, 'v', v, 'q', q);
  expectHeadDim(caller, 'q', keyDim, MAX_DIM);
  expectHeadDim(caller, 'v', valueDim, MAX_DIM);
  const gateDtypes = q.dtype === 'float32' ? (['float32'] as const) : (['float32', q.dtype] as const);
  const g = operands.shaped('g', inputs.g, [batch, tokens, headsV, keyDim], gateDtypes);
  const beta = operands.shaped('beta', inputs.beta, [batch, tokens, headsV], gateDtypes);
  const cuSeqlens = cuSeqlensOption(caller, options.cuSeqlens, batch, tokens);
  const vk = layoutOption(caller, options.stateLayout) === 'vk';
  const sequences = cuSeqlens ? cuSeqlens.length - 1 : batch;
  const stateShape = Object.freeze([sequences, headsV, vk ? valueDim : keyDim, vk ? keyDim : valueDim]);
  const { aLog, dtBias, kind, lowerBound } = checkGate(caller, operands, options.gate, headsV, keyDim);
  const { betaLogits, allowNegEigval } = betaOptions(caller, options);
  const { initialState: state } = options;
  const initialState = state === undefined ? state : operands.shaped('initialState', state, stateShape, ['float32']);
  // NOTE: without a spread, with which the engine would make up a new kind of object for every call.
  const problem: Problem = {
    q,
    k,
    v,
    g,
    beta,
    initialState,
    aLog,
    dtBias,
    stateShape,
    outShape: Object.freeze([batch, tokens, headsV, valueDim]),
    numChunks: countChunks(cuSeqlens, batch, tokens),
    arguments: [
      numberOption(caller, 'scale', options.scale, keyDim ** -0.5),
      flagOption(caller, 'qkL2Norm', options.qkL2Norm),
      GATE_KINDS[kind],
      lowerBound,
      betaLogits,
      allowNegEigval,
      vk,
      flagOption(caller, 'batchInvariant', options.batchInvariant),
      cuSeqlens,
    ],
  };
  return { problem, operands };
}

function cuSeqlensOption(caller: string, value: unknown, batch: number, tokens: number): Int32Array | undefined {
  if (value === undefined) return undefined;
  const offsets = expectCuSeqlens(caller, 'cuSeqlens', value, tokens);
  if (batch === 1) return offsets;
  throw new WarpgradRangeError(`${caller}: packed sequences (cuSeqlens) need a batch of 1, got ${batch}`);
}

function layoutOption(caller: string, value: unknown): 'kv' | 'vk' {
  if (value === undefined || value === 'kv' || value === 'vk') return value ?? 'kv';
  throw new WarpgradTypeError(`${caller}: stateLayout must be 'kv' or 'vk', got ${describe(value)}`);
}

function betaOptions(caller: string, options: KdaForwardOptions) {
  const betaLogits = flagOption(caller, 'betaLogits', options.betaLogits);
  const allowNegEigval = flagOption(caller, 'allowNegEigval', options.allowNegEigval);
  if (!allowNegEigval || betaLogits) return { betaLogits, allowNegEigval };
  throw new WarpgradRangeError(`${caller}: allowNegEigval needs betaLogits: it doubles their sigmoid`);
}

function checkGate(caller: string, operands: Operands, gate: KdaGate | undefined, headsV: number, keyDim: number) {
  if (gate === undefined) return { kind: 'given', lowerBound: 0, aLog: undefined, dtBias: undefined } as const;
  expectKnownOptions(`${caller}: gate`, gate, GATE_OPTIONS);
  const { aLog: slope, dtBias: bias, lowerBound: bound } = gate; // read once: what is checked is what is used
  const bounded = bound !== undefined;
  const lowerBound = numberOption(caller, 'gate.lowerBound', bound, 0);
  if (bounded && lowerBound >= 0) {
    throw new WarpgradRangeError(`${caller}: gate.lowerBound must be below 0, got ${lowerBound}`);
  }
  if (!bounded && slope === undefined) {
    throw new WarpgradTypeError(`${caller}: gate needs aLog (softplus gate) or lowerBound (bounded gate)`);
  }
  const aLog = slope === undefined ? undefined : operands.contiguous('gate.aLog', slope, [headsV], ['float32']);
  const flat = isTensor(bias) && bias.rank === 1;
  const dtBias =
    bias === undefined
      ? undefined
      : operands.contiguous('gate.dtBias', bias, flat ? [headsV * keyDim] : [headsV, keyDim], ['float32']);
  return { kind: bounded ? 'bounded' : 'softplus', lowerBound, aLog, dtBias } as const;
}

function countChunks(cuSeqlens: Int32Array | undefined, batch: number, tokens: number): number {
  if (!cuSeqlens) return batch * Math.ceil(tokens / CHUNK);
  let chunks = 0;
  for (let i = 1; i < cuSeqlens.length; ++i) chunks += Math.ceil((cuSeqlens[i] - cuSeqlens[i - 1]) / CHUNK);
  return chunks;
}

/** With the final state; all else as below. */
export function kdaForward(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  g: Tensor,
  beta: Tensor,
  options: KdaForwardOptions & { outputFinalState: true },
): KdaForwardResultWithState;
/**
 * Kimi Delta Attention: a recurrence with one state S [K, V] a head, `S ← diag(exp g_t) S`, then
 * `S ← S + β_t k_t (v_t - k_tᵀ S)ᵀ`, giving `out_t = scale · q_tᵀ S`; the formulas are in docs/kda.md. Enqueues and returns
 * at once.
 *
 * @param q [B, T, H, K], float32, float16 or bfloat16, K <= 256
 * @param k like q
 * @param v [B, T, HV, V], dtype of q, V <= 256; HV is a multiple of H, value head h reads q/k head h / (HV / H)
 * @param g [B, T, HV, K], float32 or the dtype of q: the log decay, <= 0, or the input of `gate`
 * @param beta [B, T, HV], float32 or the dtype of q: β, or its logits with `betaLogits`
 * @returns out, the final and the chunks' states when asked for, and what kdaBackward needs. Tokens past the end of cuSeqlens are 0.
 * @throws WarpgradTypeError, WarpgradRangeError, WarpgradError (ERR_WARPGRAD_DISPOSED, ERR_WARPGRAD_OUT_OF_MEMORY) before
 * anything is allocated or run
 */
export function kdaForward(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  g: Tensor,
  beta: Tensor,
  options?: KdaForwardOptions,
): KdaForwardResult;
export function kdaForward(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  g: Tensor,
  beta: Tensor,
  options: KdaForwardOptions = {},
): KdaForwardResult {
  const caller = 'kdaForward';
  expectKnownOptions(caller, options, FORWARD_OPTIONS);
  const { problem, operands } = checkProblem(caller, { q, k, v, g, beta }, options);
  const outputFinalState = flagOption(caller, 'outputFinalState', options.outputFinalState);
  const outputChunkStates = flagOption(caller, 'outputChunkStates', options.outputChunkStates);
  const saving = flagOption(caller, 'saveIntermediates', options.saveIntermediates);
  const stream = operands.stream(options.stream);
  const { aLog, dtBias, initialState, stateShape, numChunks } = problem;
  return disposedOnFailure((made): KdaForwardResult => {
    operands.optionalHandle('gate.dtBias', dtBias); // before a view is made of it: it may have been disposed of
    const bias = dtBias?.rank === 1 ? made(dtBias.view([v.shape[2], q.shape[3]])) : dtBias; // no sooner: a refused call holds nothing
    const inputs = [q, k, v, g, beta, aLog, bias, initialState] as const;
    const handles = inputs.map((tensor, i) => operands.optionalHandle(INPUT_NAMES[i], tensor)) as KdaInputs;
    const out = made(pendingTensor(problem.outShape, q.dtype, stream));
    const allocate = (name: string, shape: readonly number[]) => made(allocateFloats(caller, name, shape, stream));
    const finalState = outputFinalState ? allocate('finalState', stateShape) : undefined;
    const chunkStates = outputChunkStates ? allocate('chunkStates', [numChunks, ...stateShape.slice(1)]) : undefined;
    const intermediates = saving ? allocate('saved', [countSaved(problem, stream)]) : undefined;
    native(
      () =>
        addon.kdaForward(
          nativeStream(stream),
          ...handles,
          operands.handle('out', out),
          operands.optionalHandle('finalState', finalState),
          operands.optionalHandle('chunkStates', chunkStates),
          operands.optionalHandle('saved', intermediates),
          ...problem.arguments,
        ),
      caller,
    );
    const shares = inputs.map((tensor) => tensor && shareTensor(caller, tensor));
    const saved = makeSaved({ problem, shares, intermediates });
    if (bias !== dtBias) bias?.dispose(); // shared with `saved`
    return { out, ...(finalState && { finalState }), ...(chunkStates && { chunkStates }), saved };
  });
}

/** Floats of the one tensor of intermediates, whose layout the backend knows. */
function countSaved({ q, v, numChunks }: Problem, stream: Stream): number {
  return numChunks * v.shape[2] * native(() => addon.kdaSavedElems(nativeStream(stream), q.shape[3], v.shape[3]));
}

/** A result with many elements for each of the arguments', and so perhaps more than can be counted exactly. */
function allocateFloats(caller: string, name: string, shape: readonly number[], stream: Stream): Tensor {
  const bytes = 4 * sizeOf(shape);
  if (Number.isSafeInteger(bytes)) return allocateTensor(`${caller}: ${name}`, Object.freeze(shape), 'float32', stream);
  throw new WarpgradError('ERR_WARPGRAD_OUT_OF_MEMORY', `${caller}: ${name}: no memory holds about ${bytes} bytes`);
}

/**
 * Gradients of a loss with respect to all inputs of a kdaForward call, from its gradients with respect to `out` and the
 * final state; docs/kda.md has the formulas. Bitwise equal from run to run. Enqueues and returns at once.
 *
 * @param dOut like out
 * @param saved what kdaForward gave; stays usable
 * @throws like kdaForward
 */
export function kdaBackward(dOut: Tensor, saved: KdaSaved, options: KdaBackwardOptions = {}): KdaBackwardResult {
  const caller = 'kdaBackward';
  expectKnownOptions(caller, options, ['dFinalState', 'stream']);
  if (!(saved instanceof KdaSaved)) {
    throw new WarpgradTypeError(`${caller}: saved must be what kdaForward gave, got ${describe(saved)}`);
  }
  const { problem } = keptIn(saved);
  const { q, k, v, g, beta, aLog, dtBias, initialState } = problem;
  const operands = Operands.like(caller, 'q', q);
  operands.shaped('dOut', dOut, problem.outShape);
  const { dFinalState } = options;
  if (dFinalState !== undefined) operands.shaped('dFinalState', dFinalState, problem.stateShape, ['float32']);
  const stream = operands.stream(options.stream);
  const { shares, intermediates } = keptIn(saved); // again: the options may have disposed of it
  const given = [operands.handle('dOut', dOut), operands.optionalHandle('dFinalState', dFinalState)] as const;
  const like = (tensor: Tensor) => pendingTensor(tensor.shape, tensor.dtype, stream);
  const dq = like(q);
  const dk = like(k);
  const dv = like(v);
  const dg = like(g);
  const dbeta = like(beta);
  const dInitialState = initialState && like(initialState);
  const dALog = aLog && like(aLog);
  const dDtBias = disposedOnFailure((made) => {
    const gradient = dtBias && made(allocateTensor(`${caller}: dDtBias`, dtBias.shape, 'float32', stream)); // of which the addon sees a view
    const dBias = gradient?.rank === 1 ? made(gradient.view([v.shape[2], q.shape[3]])) : gradient;
    native(
      () =>
        addon.kdaBackward(
          nativeStream(stream),
          ...given,
          ...(shares.map((share) => share?.handle) as KdaInputs),
          operands.optionalHandle('saved', intermediates),
          operands.handle('dq', dq),
          operands.handle('dk', dk),
          operands.handle('dv', dv),
          operands.handle('dg', dg),
          operands.handle('dbeta', dbeta),
          operands.optionalHandle('dInitialState', dInitialState),
          operands.optionalHandle('dALog', dALog),
          operands.optionalHandle('dDtBias', dBias),
          ...problem.arguments,
        ),
      caller,
    );
    if (dBias !== gradient) dBias?.dispose();
    return gradient;
  });
  return {
    ...{ dq, dk, dv, dg, dbeta },
    ...(dInitialState && { dInitialState }),
    ...(dALog && { dALog }),
    ...(dDtBias && { dDtBias }),
  };
}
