import { sequenceRows, zeros64, type Float64Tensor, type RowRange } from './float64';
import {
  betaFromLogit,
  betaFromLogitBackward,
  gateBackward,
  gateValue,
  normalizeRow,
  normalizeRowBackward,
  type GateChannel,
} from './kdaTransforms';

// Kimi Delta Attention in plain float64, one token at a time as docs/kda.md §1 defines it, and its reverse mode through
// the same tokens with every state kept. The chunk formulas of the native code are left out on purpose.

/** The options of the operation; see `KdaOptions`. `gate` absent: g is the log decay itself. */
export interface KdaReferenceOptions {
  readonly scale?: number;
  readonly initialState?: Float64Tensor;
  readonly cuSeqlens?: ArrayLike<number>;
  readonly qkL2Norm?: boolean;
  readonly gate?: { readonly aLog?: Float64Tensor; readonly dtBias?: Float64Tensor; readonly lowerBound?: number };
  readonly betaLogits?: boolean;
  readonly allowNegEigval?: boolean;
  readonly stateLayout?: 'kv' | 'vk';
}

export interface KdaReferenceInputs {
  readonly q: Float64Tensor;
  readonly k: Float64Tensor;
  readonly v: Float64Tensor;
  readonly g: Float64Tensor;
  readonly beta: Float64Tensor;
}

export interface KdaReferenceOutputs {
  readonly out: Float64Tensor;
  readonly finalState: Float64Tensor;
}

export interface KdaReferenceGradients {
  readonly dq: Float64Tensor;
  readonly dk: Float64Tensor;
  readonly dv: Float64Tensor;
  readonly dg: Float64Tensor;
  readonly dbeta: Float64Tensor;
  /** Also there without `initialState`: the gradient of a zero state. */
  readonly dInitialState: Float64Tensor;
  readonly dALog?: Float64Tensor;
  readonly dDtBias?: Float64Tensor;
}

/** The recurrence in float64. Shapes are those of `kdaForward`; the final state is always returned. */
export function kdaForwardReference(
  inputs: KdaReferenceInputs,
  options: KdaReferenceOptions = {},
): KdaReferenceOutputs {
  const problem = describe(inputs, options);
  const out = zeros64(inputs.v.shape);
  const finalState = zeros64(problem.stateShape);
  forEachSequenceHead(problem, (rows, n, head) => {
    let state = loadState(problem, options.initialState, n, head);
    for (let t = 0; t < rows.length; t++) {
      const token = readToken(problem, rows.start + t, head);
      const step = advance(problem, token, state);
      state = step.after;
      for (let j = 0; j < problem.V; j++) out.data[token.vAt + j] = step.out[j]!;
    }
    storeState(problem, finalState, n, head, state);
  });
  return { out, finalState };
}

/** The gradients of `sum(out · dOut) + sum(finalState · dFinalState)` with respect to every input as passed. */
export function kdaBackwardReference(
  dOut: Float64Tensor,
  inputs: KdaReferenceInputs,
  options: KdaReferenceOptions & { readonly dFinalState?: Float64Tensor } = {},
): KdaReferenceGradients {
  const problem = describe(inputs, options);
  const { q, k, v, g, beta } = inputs;
  const { aLog, dtBias } = options.gate ?? {};
  const gradients: KdaReferenceGradients = {
    ...{ dq: zeros64(q.shape), dk: zeros64(k.shape), dv: zeros64(v.shape), dg: zeros64(g.shape) },
    ...{ dbeta: zeros64(beta.shape), dInitialState: zeros64(problem.stateShape) },
    ...(aLog && { dALog: zeros64(aLog.shape) }),
    ...(dtBias && { dDtBias: zeros64(dtBias.shape) }),
  };
  forEachSequenceHead(problem, (rows, n, head) => {
    const states = [loadState(problem, options.initialState, n, head)];
    for (let t = 0; t < rows.length; t++) {
      states.push(advance(problem, readToken(problem, rows.start + t, head), states[t]).after);
    }
    const adjoint = loadState(problem, options.dFinalState, n, head);
    for (let t = rows.length - 1; t >= 0; t--) {
      const token = readToken(problem, rows.start + t, head);
      const dToken = retreat(problem, token, states[t], dOut.data, adjoint);
      addTokenGradients(problem, gradients, token, dToken);
    }
    storeState(problem, gradients.dInitialState, n, head, adjoint);
  });
  return gradients;
}

interface Problem {
  readonly inputs: KdaReferenceInputs;
  readonly options: KdaReferenceOptions;
  readonly sequences: readonly RowRange[];
  readonly stateShape: readonly number[];
  readonly H: number;
  readonly HV: number;
  readonly K: number;
  readonly V: number;
  readonly scale: number;
}

function describe(inputs: KdaReferenceInputs, options: KdaReferenceOptions): Problem {
  const [batch, length, H, K] = inputs.q.shape as [number, number, number, number];
  const [HV, V] = inputs.v.shape.slice(2) as [number, number];
  const sequences = sequenceRows(options.cuSeqlens, batch, length);
  const stateShape = [sequences.length, HV, ...(options.stateLayout === 'vk' ? [V, K] : [K, V])];
  return { inputs, options, sequences, stateShape, H, HV, K, V, scale: options.scale ?? K ** -0.5 };
}

function forEachSequenceHead(problem: Problem, visit: (rows: RowRange, n: number, head: number) => void): void {
  problem.sequences.forEach((rows, n) => {
    for (let head = 0; head < problem.HV; head++) visit(rows, n, head);
  });
}

/** What the recurrence reads of one token and value head, and where its rows begin. */
interface Token {
  readonly head: number;
  readonly qkAt: number; // of q, k
  readonly vAt: number; // of v, out
  readonly gAt: number; // of g
  readonly betaAt: number; // of beta
  readonly q: Float64Array; // after the norm
  readonly k: Float64Array;
  readonly qNorm: number; // r of the norm
  readonly kNorm: number;
  readonly v: Float64Array;
  readonly g: Float64Array; // the log decay
  readonly beta: number; // after the sigmoid
}

function readToken(problem: Problem, row: number, head: number): Token {
  const { inputs, options, H, HV, K, V } = problem;
  const qkAt = (row * H + Math.floor(head / (HV / H))) * K;
  const betaAt = row * HV + head;
  const [vAt, gAt] = [betaAt * V, betaAt * K];
  const q = inputs.q.data.slice(qkAt, qkAt + K);
  const k = inputs.k.data.slice(qkAt, qkAt + K);
  const v = inputs.v.data.slice(vAt, vAt + V);
  const g = inputs.g.data.slice(gAt, gAt + K);
  if (options.gate) g.forEach((x, d) => (g[d] = gateValue(x, gateChannel(problem, head, d))));
  const [qNorm, kNorm] = options.qkL2Norm ? [normalizeRow(q, q), normalizeRow(k, k)] : [1, 1];
  const raw = inputs.beta.data[betaAt];
  const beta = options.betaLogits ? betaFromLogit(raw, options.allowNegEigval ?? false) : raw;
  return { head, qkAt, vAt, gAt, betaAt, q, k, qNorm, kNorm, v, g, beta };
}

function gateChannel({ options, K }: Problem, head: number, d: number): GateChannel {
  const { aLog, dtBias, lowerBound } = options.gate!;
  return { aLog: aLog?.data[head], bias: dtBias ? dtBias.data[head * K + d] : 0, lowerBound };
}

/** One token of the recurrence; states are [K, V]. */
interface Step {
  readonly decayed: Float64Array; // D = diag(exp g) S
  readonly residual: Float64Array; // u = v − Dᵀk
  readonly after: Float64Array; // S' = D + β k uᵀ
  readonly out: Float64Array; // o = scale · S'ᵀq
}

function advance({ K, V, scale }: Problem, token: Token, before: Float64Array): Step {
  const { q, k, v, g, beta } = token;
  const decayed = before.slice();
  const residual = v.slice();
  for (let i = 0; i < K; i++) {
    const decay = Math.exp(g[i]);
    for (let j = 0; j < V; j++) {
      decayed[i * V + j] *= decay;
      residual[j] -= k[i] * decayed[i * V + j];
    }
  }
  const after = decayed.slice();
  const out = new Float64Array(V);
  for (let i = 0; i < K; i++) {
    for (let j = 0; j < V; j++) {
      after[i * V + j] += beta * k[i] * residual[j];
      out[j] += scale * q[i] * after[i * V + j];
    }
  }
  return { decayed, residual, after, out };
}

/** Gradients to what one token gave to the recurrence. */
interface TokenGradients {
  readonly dq: Float64Array;
  readonly dk: Float64Array;
  readonly dv: Float64Array;
  readonly dg: Float64Array;
  readonly dbeta: number;
}

/** Reverse mode of `advance`: turns the adjoint of S' into that of S, in place. */
function retreat(
  problem: Problem,
  token: Token,
  before: Float64Array,
  dOut: Float64Array,
  adjoint: Float64Array,
): TokenGradients {
  const { K, V, scale } = problem;
  const { q, k, g, beta, vAt } = token;
  const { decayed, residual, after } = advance(problem, token, before);
  const [dq, dk, dg] = [new Float64Array(K), new Float64Array(K), new Float64Array(K)];
  const dv = new Float64Array(V);
  let dbeta = 0;
  for (let i = 0; i < K; i++) {
    for (let j = 0; j < V; j++) {
      const at = i * V + j;
      dq[i] += scale * after[at] * dOut[vAt + j]; // o = scale · S'ᵀq
      adjoint[at] += scale * q[i] * dOut[vAt + j];
      dbeta += adjoint[at] * k[i] * residual[j]; // S' = D + β k uᵀ
      dk[i] += beta * adjoint[at] * residual[j];
      dv[j] += beta * adjoint[at] * k[i]; // du, and u = v − Dᵀk: dv = du
    }
  }
  for (let i = 0; i < K; i++) {
    const decay = Math.exp(g[i]);
    for (let j = 0; j < V; j++) {
      const at = i * V + j;
      dk[i] -= decayed[at] * dv[j]; // u = v − Dᵀk
      adjoint[at] -= k[i] * dv[j]; // now the adjoint of D
      dg[i] += adjoint[at] * decayed[at]; // D = diag(exp g) S
      adjoint[at] *= decay;
    }
  }
  return { dq, dk, dv, dg, dbeta };
}

/** Adds one token's gradients to the tensors, through the norm, the gate and the sigmoid. */
function addTokenGradients(
  problem: Problem,
  gradients: KdaReferenceGradients,
  token: Token,
  dToken: TokenGradients,
): void {
  const { inputs, options, K } = problem;
  const { head, qkAt, vAt, gAt, betaAt } = token;
  const { qkL2Norm, betaLogits, allowNegEigval } = options;
  const dq = qkL2Norm ? normalizeRowBackward(token.q, token.qNorm, dToken.dq) : dToken.dq;
  const dk = qkL2Norm ? normalizeRowBackward(token.k, token.kNorm, dToken.dk) : dToken.dk;
  for (let d = 0; d < K; d++) {
    gradients.dq.data[qkAt + d] += dq[d]; // summed over the value heads of the group
    gradients.dk.data[qkAt + d] += dk[d];
    if (!options.gate) {
      gradients.dg.data[gAt + d] = dToken.dg[d]!;
      continue;
    }
    const { dx, dALog } = gateBackward(inputs.g.data[gAt + d], dToken.dg[d], gateChannel(problem, head, d));
    gradients.dg.data[gAt + d] = dx;
    if (gradients.dDtBias) gradients.dDtBias.data[head * K + d] += dx;
    if (gradients.dALog) gradients.dALog.data[head] += dALog;
  }
  gradients.dv.data.set(dToken.dv, vAt);
  gradients.dbeta.data[betaAt] = betaLogits
    ? betaFromLogitBackward(inputs.beta.data[betaAt], dToken.dbeta, allowNegEigval ?? false)
    : dToken.dbeta;
}

/** State n of a head as [K, V], whatever the layout; zero where there is no tensor. */
function loadState(problem: Problem, tensor: Float64Tensor | undefined, n: number, head: number): Float64Array {
  const state = new Float64Array(problem.K * problem.V);
  if (tensor) state.forEach((_, at) => (state[at] = tensor.data[stateIndex(problem, n, head, at)]!));
  return state;
}

function storeState(problem: Problem, tensor: Float64Tensor, n: number, head: number, state: Float64Array): void {
  state.forEach((value, at) => (tensor.data[stateIndex(problem, n, head, at)] = value));
}

function stateIndex({ HV, K, V, options }: Problem, n: number, head: number, at: number): number {
  const start = (n * HV + head) * K * V;
  return options.stateLayout === 'vk' ? start + (at % V) * K + Math.floor(at / V) : start + at;
}
