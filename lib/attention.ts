import type { DType } from './dtype';
import { fromNative, WarpgradRangeError, WarpgradTypeError } from './errors';
import { addon } from './native';
import { expectCuSeqlens, expectHeadDim, expectHeads, Operands } from './operands';
import { nativeStream, type Stream } from './stream';
import { pendingTensor, type Tensor } from './tensor';
import { describe, expectKnownOptions, flagOption, isList, numberOption, readSizes } from './validate';

/** Largest head dimension. */
const MAX_HEAD_DIM = 256;
/** Beyond these, float32 loses the cap or its square. */
const MIN_SOFTCAP = 1e-18;
const MAX_SOFTCAP = 1e18;

export interface AttentionOptions {
  /** No query sees keys to its right, counted from the bottom-right corner: the last query sees the last key. */
  causal?: boolean | undefined;
  /** Keys to the left and to the right of the diagonal that a query sees; Infinity for no limit. Default: no limits. */
  window?: readonly [left: number, right: number] | undefined;
  /** Factor of q·k. Default: D^-1/2. */
  softmaxScale?: number | undefined;
  /** Scores become cap·tanh(score / cap). Default: off, as is 0. */
  softcap?: number | undefined;
  /** Learnable logit of each head that takes weight and gives no value: float32 [H]. */
  sink?: Tensor | undefined;
  /** Offsets of packed queries, [N + 1] starting at 0; then q is [total, H, D]. With `cuSeqlensK`. */
  cuSeqlensQ?: readonly number[] | Int32Array | Tensor | undefined;
  /** Offsets of packed keys. */
  cuSeqlensK?: readonly number[] | Int32Array | Tensor | undefined;
  /** Stream to run on. Default: the current one of the device. */
  stream?: Stream | undefined;
}

export interface AttentionBackwardOptions extends AttentionOptions {
  /** Gradients bitwise equal from run to run. On the CPU, and on a GPU above head dimension 128, they always are. */
  deterministic?: boolean | undefined;
}

export interface AttentionForwardResult {
  /** [B, Sq, H, Dv] or [total_q, H, Dv], dtype of q. */
  readonly out: Tensor;
  /** Log-sum-exp of the scores of each query, natural logarithm: float32 [B, H, Sq] or [H, total_q]. */
  readonly lse: Tensor;
}

export interface AttentionBackwardResult {
  /** Like q. */
  readonly dq: Tensor;
  /** Like k. */
  readonly dk: Tensor;
  /** Like v. */
  readonly dv: Tensor;
  /** float32 [H], when there is a sink. */
  readonly dSink?: Tensor;
}

/** Of the mathematics, without what says where it runs. */
export const ATTENTION_OPTIONS = ['causal', 'window', 'softmaxScale', 'softcap', 'sink', 'cuSeqlensQ', 'cuSeqlensK'];
const FORWARD_OPTIONS = [...ATTENTION_OPTIONS, 'stream'];
const BACKWARD_OPTIONS = [...FORWARD_OPTIONS, 'deterministic'];

const DENSE_LAYOUTS = { q: '[B, S, H, D]', k: '[B, S, Hkv, D]', v: '[B, S, Hkv, Dv]' };
const PACKED_LAYOUTS = { q: '[total, H, D]', k: '[total, Hkv, D]', v: '[total, Hkv, Dv]' };

interface Problem {
  readonly sink: Tensor | undefined;
  readonly outShape: readonly number[];
  readonly lseShape: readonly number[];
  readonly scale: number;
  readonly softcap: number;
  readonly window: Window;
  readonly offsets: Offsets;
  readonly stream: Stream;
  readonly operands: Operands;
}

interface Window {
  readonly left: number;
  readonly right: number;
}

interface Offsets {
  readonly q: Int32Array | undefined;
  readonly k: Int32Array | undefined;
}

const FLOAT32: readonly DType[] = ['float32'];
const DENSE: Offsets = { q: undefined, k: undefined };

/** Of packed rows without a batch. */
function shapeOf(batch: number | undefined, rows: number, heads: number, dim: number): number[] {
  return batch === undefined ? [rows, heads, dim] : [batch, rows, heads, dim];
}

/**
 * Checks what forward and backward have in common.
 *
 * NOTE: a call takes a few microseconds, most of them here while the engine has not optimised it yet. Spreads, patterns,
 * closures and lists that are there only to be passed on would double that.
 */
function checkProblem(caller: string, q: unknown, k: unknown, v: unknown, options: AttentionOptions): Problem {
  const operands = Operands.of(caller, 'q', q);
  const packed = options.cuSeqlensQ !== undefined || options.cuSeqlensK !== undefined;
  const rank = packed ? 3 : 4;
  const layouts = packed ? PACKED_LAYOUTS : DENSE_LAYOUTS;
  const tensorQ = operands.ranked('q', q, layouts.q, rank);
  const shapeQ = tensorQ.shape;
  const tensorK = operands.ranked('k', k, layouts.k, rank);
  const shapeK = tensorK.shape;
  const batch = packed ? undefined : shapeQ[0];
  const rowsQ = shapeQ[rank - 3];
  const heads = shapeQ[rank - 2];
  const headDim = shapeQ[rank - 1];
  const rowsK = shapeK[rank - 3];
  const headsKv = shapeK[rank - 2];
  operands.fitting('k', tensorK, shapeOf(batch, rowsK, headsKv, headDim));
  expectHeads(caller, 'q', tensorQ, 'k', tensorK);
  const tensorV = operands.ranked('v', v, layouts.v, rank);
  const valueDim = tensorV.shape[rank - 1];
  operands.fitting('v', tensorV, shapeOf(batch, rowsK, headsKv, valueDim));
  expectHeadDim(caller, 'q', headDim, MAX_HEAD_DIM);
  expectHeadDim(caller, 'v', valueDim, MAX_HEAD_DIM);
  const sink = options.sink === undefined ? undefined : operands.contiguous('sink', options.sink, [heads], FLOAT32);
  const window = windowOption(caller, options);
  const offsets = packed ? packedOffsets(caller, options, rowsQ, rowsK) : DENSE;
  return {
    sink,
    outShape: Object.freeze(shapeOf(batch, rowsQ, heads, valueDim)),
    lseShape: Object.freeze(batch === undefined ? [heads, rowsQ] : [batch, heads, rowsQ]),
    stream: operands.stream(options.stream),
    operands,
    scale: numberOption(caller, 'softmaxScale', options.softmaxScale, headDim ** -0.5),
    softcap: softcapOption(caller, options.softcap),
    window,
    offsets,
  };
}

function softcapOption(caller: string, value: unknown): number {
  const softcap = numberOption(caller, 'softcap', value, 0);
  if (softcap < 0) throw new WarpgradRangeError(`${caller}: softcap must be >= 0, got ${softcap}`);
  if (softcap !== 0 && !(softcap >= MIN_SOFTCAP && softcap <= MAX_SOFTCAP)) {
    throw new WarpgradRangeError(
      `${caller}: softcap must be 0 or from ${MIN_SOFTCAP} to ${MAX_SOFTCAP}, got ${softcap}`,
    );
  }
  return softcap;
}

function windowOption(caller: string, options: AttentionOptions): Window {
  const causal = flagOption(caller, 'causal', options.causal);
  const given: unknown = options.window;
  if (given === undefined) return { left: Infinity, right: causal ? 0 : Infinity };
  if (!isList(given)) {
    throw new WarpgradTypeError(`${caller}: window must be [left, right] such as [128, 0], got ${describe(given)}`);
  }
  const window = readSizes(given); // once: what is checked is what is used
  const valid = (side: unknown) => side === Infinity || (Number.isSafeInteger(side) && (side as number) >= 0);
  if (window.length !== 2 || !valid(window[0]) || !valid(window[1])) {
    throw new WarpgradRangeError(
      `${caller}: window must be [left, right] with whole numbers >= 0 or Infinity, got ${describe(window)}`,
    );
  }
  return { left: window[0], right: causal ? 0 : window[1] };
}

function packedOffsets(caller: string, options: AttentionOptions, rowsQ: number, rowsK: number): Offsets {
  for (const [given, missing] of [
    ['cuSeqlensQ', 'cuSeqlensK'],
    ['cuSeqlensK', 'cuSeqlensQ'],
  ] as const) {
    if (options[missing] === undefined) throw new WarpgradTypeError(`${caller}: ${given} needs ${missing} beside it`);
  }
  const offsetsQ = expectCuSeqlens(caller, 'cuSeqlensQ', options.cuSeqlensQ, rowsQ);
  const offsetsK = expectCuSeqlens(caller, 'cuSeqlensK', options.cuSeqlensK, rowsK);
  if (offsetsQ.length !== offsetsK.length) {
    throw new WarpgradRangeError(
      `${caller}: cuSeqlensQ and cuSeqlensK must have equally many entries, got ${offsetsQ.length} and ${offsetsK.length}`,
    );
  }
  return { q: offsetsQ, k: offsetsK };
}

/**
 * Scaled dot-product attention, `out_i = Σ_j softmax_j(scale · q_i·k_j) v_j` over the keys that query i sees; the formulas
 * are in docs/attention.md. Enqueues and returns at once.
 *
 * @param q [B, Sq, H, D], or packed [total_q, H, D]; float32, float16 or bfloat16, last dimension contiguous, D <= 256
 * @param k [B, Sk, Hkv, D] or [total_k, Hkv, D], dtype of q; H is a multiple of Hkv, query head h reads head h / (H / Hkv)
 * @param v [B, Sk, Hkv, Dv] or [total_k, Hkv, Dv], dtype of q, Dv <= 256
 * @returns out and lse. A query that sees no key has out 0 and lse -Infinity (or its sink). Rows past the end of
 * cuSeqlensQ are 0.
 * @throws WarpgradTypeError, WarpgradRangeError, WarpgradError (ERR_WARPGRAD_DISPOSED, ERR_WARPGRAD_OUT_OF_MEMORY) before
 * anything is allocated or run
 */
export function attentionForward(
  q: Tensor,
  k: Tensor,
  v: Tensor,
  options: AttentionOptions = {},
): AttentionForwardResult {
  expectKnownOptions('attentionForward', options, FORWARD_OPTIONS);
  const problem = checkProblem('attentionForward', q, k, v, options);
  const { operands, stream, sink, window, offsets } = problem;
  const handleQ = operands.handle('q', q);
  const handleK = operands.handle('k', k);
  const handleV = operands.handle('v', v);
  const handleSink = operands.optionalHandle('sink', sink);
  const out = pendingTensor(problem.outShape, q.dtype, stream);
  const lse = pendingTensor(problem.lseShape, 'float32', stream);
  try {
    addon.attentionForward(
      nativeStream(stream),
      handleQ,
      handleK,
      handleV,
      handleSink,
      operands.handle('out', out),
      operands.handle('lse', lse),
      problem.scale,
      problem.softcap,
      window.left,
      window.right,
      offsets.q,
      offsets.k,
    );
  } catch (error) {
    throw fromNative(error, 'attentionForward');
  }
  return { out, lse };
}

/**
 * Gradients of a loss with respect to q, k, v and the sink from its gradient with respect to `out`; docs/attention.md has
 * the formulas. Takes the operands, results and options of the forward call. Enqueues and returns at once.
 *
 * @param dOut like out, any strides with the last dimension contiguous
 * @param out what attentionForward gave
 * @param lse what attentionForward gave
 * @returns dq, dk, dv with the shapes and dtype of q, k, v, and dSink float32 [H] when there is a sink
 * @throws like attentionForward
 */
export function attentionBackward(
  dOut: Tensor,
  q: Tensor,
  k: Tensor,
  v: Tensor,
  out: Tensor,
  lse: Tensor,
  options: AttentionBackwardOptions = {},
): AttentionBackwardResult {
  const caller = 'attentionBackward';
  expectKnownOptions(caller, options, BACKWARD_OPTIONS);
  const problem = checkProblem(caller, q, k, v, options);
  const { operands, stream, sink, window, offsets } = problem;
  operands.shaped('dOut', dOut, problem.outShape);
  operands.contiguous('out', out, problem.outShape);
  operands.contiguous('lse', lse, problem.lseShape, FLOAT32);
  const deterministic = flagOption(caller, 'deterministic', options.deterministic);
  const handleDOut = operands.handle('dOut', dOut);
  const handleQ = operands.handle('q', q);
  const handleK = operands.handle('k', k);
  const handleV = operands.handle('v', v);
  const handleOut = operands.handle('out', out);
  const handleLse = operands.handle('lse', lse);
  const handleSink = operands.optionalHandle('sink', sink);
  const dq = pendingTensor(q.shape, q.dtype, stream);
  const dk = pendingTensor(k.shape, q.dtype, stream);
  const dv = pendingTensor(v.shape, q.dtype, stream);
  const dSink = sink && pendingTensor(sink.shape, 'float32', stream);
  try {
    addon.attentionBackward(
      nativeStream(stream),
      handleDOut,
      handleQ,
      handleK,
      handleV,
      handleOut,
      handleLse,
      handleSink,
      operands.handle('dq', dq),
      operands.handle('dk', dk),
      operands.handle('dv', dv),
      operands.optionalHandle('dSink', dSink),
      problem.scale,
      problem.softcap,
      window.left,
      window.right,
      offsets.q,
      offsets.k,
      deterministic,
    );
  } catch (error) {
    throw fromNative(error, caller);
  }
  return dSink ? { dq, dk, dv, dSink } : { dq, dk, dv };
}
