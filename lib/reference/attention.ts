import { sequenceRows, zeros64, type Float64Tensor, type RowRange } from './float64';

// Attention in plain float64, one full row of scores at a time: slow, and easy to compare with docs/attention.md.

/** The options of the operation; see `AttentionOptions`. */
export interface AttentionReferenceOptions {
  readonly causal?: boolean;
  readonly window?: readonly [number, number];
  readonly softmaxScale?: number;
  readonly softcap?: number;
  readonly sink?: Float64Tensor;
  readonly cuSeqlensQ?: ArrayLike<number>;
  readonly cuSeqlensK?: ArrayLike<number>;
}

export interface AttentionReferenceOutputs {
  readonly out: Float64Tensor;
  readonly lse: Float64Tensor;
}

export interface AttentionReferenceGradients {
  readonly dq: Float64Tensor;
  readonly dk: Float64Tensor;
  readonly dv: Float64Tensor;
  readonly dSink?: Float64Tensor;
}

/** Softmax(scale·QKᵀ)·V in float64, with the log-sum-exp of each row. Shapes are those of `attentionForward`. */
export function attentionForwardReference(
  q: Float64Tensor,
  k: Float64Tensor,
  v: Float64Tensor,
  options: AttentionReferenceOptions = {},
): AttentionReferenceOutputs {
  const problem = describe(q, k, v, options);
  const { heads, kvHeads, valueDim } = problem;
  const out = zeros64([...q.shape.slice(0, -1), valueDim]);
  const lse = zeros64(lseShape(q, problem));
  lse.data.fill(-Infinity); // rows of no sequence see no key
  forEachRow(problem, (sequence, head, i) => {
    const row = softmaxRow(problem, sequence, head, i);
    lse.data[lseIndex(problem, sequence, head, i)] = row.lse;
    const outAt = ((sequence.q.start + i) * heads + head) * valueDim;
    const kvHead = kvHeadOf(problem, head);
    row.weights.forEach((weight, n) => {
      const vAt = ((sequence.k.start + row.first + n) * kvHeads + kvHead) * valueDim;
      for (let c = 0; c < valueDim; c++) out.data[outAt + c] += weight * v.data[vAt + c];
    });
  });
  return { out, lse };
}

/** The gradients of `sum(out · dOut)` in float64; the forward is computed again, nothing of it is taken over. */
export function attentionBackwardReference(
  dOut: Float64Tensor,
  q: Float64Tensor,
  k: Float64Tensor,
  v: Float64Tensor,
  options: AttentionReferenceOptions = {},
): AttentionReferenceGradients {
  const problem = describe(q, k, v, options);
  const { heads, kvHeads, headDim, valueDim, scale } = problem;
  const { out } = attentionForwardReference(q, k, v, options);
  const [dq, dk, dv] = [zeros64(q.shape), zeros64(k.shape), zeros64(v.shape)];
  const dSink = options.sink && zeros64(options.sink.shape);
  forEachRow(problem, (sequence, head, i) => {
    const row = softmaxRow(problem, sequence, head, i);
    const qRow = (sequence.q.start + i) * heads + head;
    const [qAt, outAt] = [qRow * headDim, qRow * valueDim];
    const kvHead = kvHeadOf(problem, head);
    const delta = dot(dOut.data, outAt, out.data, outAt, valueDim); // D_i
    row.weights.forEach((weight, n) => {
      const kRow = (sequence.k.start + row.first + n) * kvHeads + kvHead;
      const [kAt, vAt] = [kRow * headDim, kRow * valueDim];
      for (let c = 0; c < valueDim; c++) dv.data[vAt + c] += weight * dOut.data[outAt + c];
      const dWeight = dot(dOut.data, outAt, v.data, vAt, valueDim);
      const dScore = weight * (dWeight - delta) * row.slopes[n];
      for (let c = 0; c < headDim; c++) {
        dq.data[qAt + c] += scale * dScore * k.data[kAt + c];
        dk.data[kAt + c] += scale * dScore * q.data[qAt + c];
      }
    });
    if (dSink && row.lse !== -Infinity) dSink.data[head] -= Math.exp(options.sink.data[head] - row.lse) * delta;
  });
  return { dq, dk, dv, ...(dSink && { dSink }) };
}

interface Sequence {
  readonly index: number;
  readonly q: RowRange;
  readonly k: RowRange;
}

interface Problem {
  readonly q: Float64Tensor;
  readonly k: Float64Tensor;
  readonly sink: Float64Tensor | undefined;
  readonly sequences: readonly Sequence[];
  readonly packed: boolean;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly scale: number;
  readonly softcap: number;
  readonly left: number;
  readonly right: number;
}

function describe(q: Float64Tensor, k: Float64Tensor, v: Float64Tensor, options: AttentionReferenceOptions): Problem {
  const packed = options.cuSeqlensQ !== undefined;
  const [batch, qLength, kLength] = packed ? [1, 0, 0] : [q.shape[0], q.shape[1], k.shape[1]];
  const kRows = sequenceRows(options.cuSeqlensK, batch, kLength);
  const sequences = sequenceRows(options.cuSeqlensQ, batch, qLength).map((rows, index) => ({
    index,
    q: rows,
    k: kRows[index],
  }));
  const headDim = q.shape.at(-1)!;
  const [left, right] = options.window ?? [Infinity, Infinity];
  return {
    q,
    k,
    sink: options.sink,
    sequences,
    packed,
    heads: q.shape.at(-2)!,
    kvHeads: k.shape.at(-2)!,
    headDim,
    valueDim: v.shape.at(-1)!,
    scale: options.softmaxScale ?? headDim ** -0.5,
    softcap: options.softcap ?? 0,
    left,
    right: options.causal ? Math.min(right, 0) : right,
  };
}

function forEachRow(problem: Problem, visit: (sequence: Sequence, head: number, i: number) => void): void {
  for (const sequence of problem.sequences) {
    for (let head = 0; head < problem.heads; head++) {
      for (let i = 0; i < sequence.q.length; i++) visit(sequence, head, i);
    }
  }
}

/** Query row i of one sequence and head over its visible keys, `first` the first of them. */
interface SoftmaxRow {
  readonly first: number;
  readonly weights: Float64Array; // P_ij = exp(s_ij − lse_i)
  readonly slopes: Float64Array; // ds_ij / d(scale · q_i·k_j): 1 without softcap
  readonly lse: number;
}

function softmaxRow(problem: Problem, sequence: Sequence, head: number, i: number): SoftmaxRow {
  const { q, k, heads, kvHeads, headDim, scale, softcap, sink } = problem;
  const p = i + sequence.k.length - sequence.q.length; // the diagonal ends at the bottom right corner
  const first = Math.max(0, p - problem.left);
  const last = Math.min(sequence.k.length - 1, p + problem.right);
  const count = Math.max(0, last - first + 1);
  const scores = new Float64Array(count);
  const slopes = new Float64Array(count).fill(1);
  const qAt = ((sequence.q.start + i) * heads + head) * headDim;
  const kvHead = kvHeadOf(problem, head);
  for (let n = 0; n < count; n++) {
    const kAt = ((sequence.k.start + first + n) * kvHeads + kvHead) * headDim;
    scores[n] = scale * dot(q.data, qAt, k.data, kAt, headDim);
    if (softcap > 0) {
      const t = Math.tanh(scores[n] / softcap);
      scores[n] = softcap * t;
      slopes[n] = 1 - t * t;
    }
  }
  const sinkLogit = sink ? sink.data[head] : -Infinity;
  const maximum = scores.reduce((a, b) => Math.max(a, b), sinkLogit);
  if (count === 0 && maximum === -Infinity) return { first, weights: scores, slopes, lse: -Infinity };
  const sum = scores.reduce((total, score) => total + Math.exp(score - maximum), Math.exp(sinkLogit - maximum));
  const lse = maximum + Math.log(sum);
  return { first, weights: scores.map((score) => Math.exp(score - lse)), slopes, lse };
}

function kvHeadOf({ heads, kvHeads }: Problem, head: number): number {
  return Math.floor(head / (heads / kvHeads));
}

function lseShape(q: Float64Tensor, { packed, heads }: Problem): number[] {
  return packed ? [heads, q.shape[0]] : [q.shape[0], heads, q.shape[1]];
}

function lseIndex({ packed, heads, q }: Problem, sequence: Sequence, head: number, i: number): number {
  if (packed) return head * q.shape[0] + sequence.q.start + i;
  return (sequence.index * heads + head) * sequence.q.length + i;
}

function dot(a: Float64Array, aAt: number, b: Float64Array, bAt: number, length: number): number {
  let sum = 0;
  for (let c = 0; c < length; c++) sum += a[aAt + c] * b[bAt + c];
  return sum;
}
