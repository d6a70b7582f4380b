import type { Float64Tensor } from '../../lib/reference/float64';
import {
  betaFromLogit,
  betaFromLogitBackward,
  gateBackward,
  gateValue,
  normalizeRow,
} from '../../lib/reference/kdaTransforms';
import type { Tolerance } from './compare';
import { ROUNDOFF, type Operand } from './dtypes';
import { kdaReference, type KdaCase } from './kdaCases';
import { kdaRoundings, type KdaRoundings } from './kdaRoundings';
import { runKda, type KdaResults } from './run';
import { roundedTolerance, sizeOf, type Size } from './tolerance';

// Tolerances of KDA's results. Where terms cancel, their roundings are large beside the result: errors are measured against
// the result and against its "natural" size, what its terms make if none cancel.

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs, floor, max, sqrt } = Math;

export type KdaNaturals = Partial<Record<keyof KdaResults, Size>>;

const NOTHING: Size = { largest: 0, rms: 0 };

/** Returned in float32 whatever the dtype of the operands. */
const FLOAT32_RESULTS: ReadonlySet<string> = new Set(['finalState', 'dInitialState', 'dALog', 'dDtBias']);

/** Half the distance of the smallest numbers. */
const SMALLEST: Record<Operand, number> = { float32: 2 ** -150, float16: 2 ** -25, bfloat16: 2 ** -134 };

/**
 * A float32 sum of n terms is off by about 0.4 √n 2^-24 of its size before terms cancel: this is four times that for a chunk
 * of 64 terms beside a head dimension of 256.
 */
const FLOAT32_SUM = 2e-6;

/**
 * dg is a running sum over the rest of a chunk of 64 tokens, so the roundings of its tokens are one another's, and a sum of dg
 * over tokens is off by up to √64 times what it would be of independent ones.
 */
const DEPENDENT_ROUNDINGS = 8;

/** On the CPU: float32 sums, whatever the dtype, and one rounding of the result. */
export function kdaTolerance(
  dtype: Operand,
  name: keyof KdaResults,
  expected: Float64Tensor,
  { [name]: natural = NOTHING }: KdaNaturals,
): Tolerance {
  const size = sizeOf(expected.data);
  const own = FLOAT32_RESULTS.has(name) ? 'float32' : dtype;
  const sum = name === 'dALog' || name === 'dDtBias' ? DEPENDENT_ROUNDINGS * FLOAT32_SUM : FLOAT32_SUM;
  const allowed = (of: keyof Size) => sum * (size[of] + natural[of]) + ROUNDOFF[own] * size[of] + SMALLEST[own];
  return { maxAbs: allowed('largest'), ...(size.rms > 0 && { rmsRatio: allowed('rms') / size.rms }) };
}

/** What FORMAT.md allows of the natural size of results that are sums of terms which may cancel. */
const NATURAL_FACTORS: Partial<Record<keyof KdaResults, number>> = { dg: 4e-3, dDtBias: 1e-2, dALog: 2e-2 };

/**
 * The same on a GPU, whose kernels round the operands of every product to bfloat16, whatever the dtype: at random by 1.6e-3,
 * 0.4 u, of every term. Natural sizes are mostly 1.4 to 2 times the result; half of them stands in for a result that is smaller, so
 * that its rms error may be 4 u / 2, five times what such roundings make.
 */
export function kdaToleranceOnGpu(
  name: keyof KdaResults,
  expected: Float64Tensor,
  { [name]: natural = NOTHING }: KdaNaturals,
): Tolerance {
  const size = sizeOf(expected.data);
  const factor = NATURAL_FACTORS[name];
  if (factor === undefined) {
    const terms = { largest: max(size.largest, natural.largest / 2), rms: max(size.rms, natural.rms / 2) };
    return roundedTolerance('bfloat16', size, terms);
  }
  // As in FORMAT.md, no bound on their rms ratio: independent roundings of the terms do not cancel.
  return { maxAbs: roundedTolerance('bfloat16', size).maxAbs! + factor * natural.largest };
}

export function kdaNaturals(item: KdaCase): KdaNaturals {
  const effective = effectiveKdaCase(item);
  const heads = perValueHead(effective);
  const { dq, dk } = kdaReference(heads);
  return {
    ...gateNaturals(item, effective, dq, dk),
    ...recurrenceNaturals(item, effective, dq, dk, kdaRoundings(heads)),
  };
}

/**
 * The squares of more states take long (0.3 s a million) and much memory. Tolerances are tighter where they are not known, so
 * that a result whose terms cancel may fail: all short chains of one head are within.
 */
const MOST_STATES = 1e7;

/** The same from float32 gradients, for sizes at which the reference is slow; of the gate's gradients alone for large ones. */
export async function kdaNaturalsByCpu(item: KdaCase): Promise<KdaNaturals> {
  const effective = effectiveKdaCase(item);
  const heads = perValueHead(effective);
  const { dq, dk } = await runKda(heads, { dtype: 'float32' });
  const few = heads.inputs.q.data.length * heads.inputs.v.shape[3] <= MOST_STATES;
  return {
    ...gateNaturals(item, effective, dq, dk),
    ...(few && recurrenceNaturals(item, effective, dq, dk, kdaRoundings(heads))),
  };
}

/** Of the results that do not come from the gate, from their squares and dq and dk of each value head. */
function recurrenceNaturals(
  { inputs, options }: KdaCase,
  effective: KdaCase,
  dq: Float64Tensor,
  dk: Float64Tensor,
  { dbeta, ...roundings }: KdaRoundings,
): KdaNaturals {
  const ofSquares = (squares: Float64Array) => sizeOf(squares.map(sqrt));
  const ofKeys = (x: Float64Tensor, y: Float64Tensor, dy: Float64Tensor, squares: Float64Array) => {
    const [gradients, errors] = [dy.data, squares].map((values) => sumOfHeads(values, y, dy.shape[2]));
    return ofSquares(options.qkL2Norm ? throughNorm(x.data, y, gradients, errors) : errors);
  };
  const { allowNegEigval = false } = options;
  const slope = (b: number) => (options.betaLogits ? betaFromLogitBackward(b, 1, allowNegEigval) : 1);
  return {
    ...{ out: ofSquares(roundings.out), dv: ofSquares(roundings.dv) },
    ...{ finalState: ofSquares(roundings.finalState), dInitialState: ofSquares(roundings.dInitialState) },
    dq: ofKeys(inputs.q, effective.inputs.q, dq, roundings.dq),
    dk: ofKeys(inputs.k, effective.inputs.k, dk, roundings.dk),
    dbeta: ofSquares(dbeta.map((square, at) => square * slope(inputs.beta.data[at]) ** 2)),
  };
}

/** Sums over the value heads of a group, from rows a value head to those of `like`. */
function sumOfHeads(values: Float64Array, like: Float64Tensor, valueHeads: number): Float64Array {
  const [H, K] = like.shape.slice(2) as [number, number];
  const sums = new Float64Array(like.data.length);
  for (let at = 0; at < values.length; at++) sums[keyRow(floor(at / K), valueHeads, H) * K + (at % K)] += values[at];
  return sums;
}

/** The row of q and k of a row a value head. */
function keyRow(row: number, valueHeads: number, heads: number): number {
  return floor(row / valueHeads) * heads + floor(((row % valueHeads) * heads) / valueHeads);
}

/** Squares of dx = r (dy − y (y·dy)) = r (I − y yᵀ) dy, from those of dy. */
function throughNorm(x: Float64Array, y: Float64Tensor, dy: Float64Array, squares: Float64Array): Float64Array {
  const K = y.shape[3];
  const result = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += K) {
    let [norm, along, error] = [1e-6, 0, 0];
    for (let at = start; at < start + K; at++) {
      norm += x[at] ** 2;
      along += y.data[at] * dy[at];
      error += y.data[at] ** 2 * (squares[at] + dy[at] ** 2);
    }
    for (let at = start; at < start + K; at++) {
      const y2 = y.data[at] ** 2;
      result[at] = ((1 - 2 * y2) * squares[at] + y2 * (error + along * along)) / norm;
    }
  }
  return result;
}

/** Of dg ((|q dq| + |k dk|) |da/dg|), and of dALog and dDtBias (roots of the sums of squares of theirs). */
function gateNaturals(item: KdaCase, effective: KdaCase, dq: Float64Tensor, dk: Float64Tensor): KdaNaturals {
  const { q, k, v, g } = effective.inputs;
  const [H, HV, K] = [q.shape[2], v.shape[2], q.shape[3]];
  const { aLog, dtBias, lowerBound } = item.options.gate ?? {};
  const dALog = new Float64Array(HV);
  const dDtBias = new Float64Array(HV * K);
  const dg = new Float64Array(g.data.length);
  for (let at = 0; at < g.data.length; at++) {
    const [row, d] = [floor(at / K), at % K];
    const head = row % HV;
    const keyAt = keyRow(row, HV, H) * K + d;
    dg[at] = abs(q.data[keyAt] * dq.data[at]) + abs(k.data[keyAt] * dk.data[at]);
    if (!item.options.gate) continue;
    const bias = dtBias?.data[head * K + d] ?? 0;
    const terms = gateBackward(item.inputs.g.data[at], dg[at], { aLog: aLog?.data[head], bias, lowerBound });
    dg[at] = terms.dx;
    dALog[head] += terms.dALog ** 2;
    dDtBias[head * K + d] += terms.dx ** 2;
  }
  return { dg: sizeOf(dg), dALog: sizeOf(dALog.map(sqrt)), dDtBias: sizeOf(dDtBias.map(sqrt)) };
}

/** The case with what enters the recurrence as its inputs: normalised q and k, log decays, β. */
function effectiveKdaCase(item: KdaCase): KdaCase {
  const { inputs, options } = item;
  const { qkL2Norm, gate, betaLogits, allowNegEigval, ...rest } = options;
  const copy = ({ shape, data }: Float64Tensor): Float64Tensor => ({ shape, data: data.slice() });
  const [q, k, g, beta] = [copy(inputs.q), copy(inputs.k), copy(inputs.g), copy(inputs.beta)];
  const [K, HV] = [q.shape[3], g.shape[2]];
  if (qkL2Norm) {
    for (const { data } of [q, k]) {
      for (let at = 0; at < data.length; at += K) normalizeRow(data.subarray(at, at + K), data.subarray(at, at + K));
    }
  }
  if (gate) {
    const { aLog, dtBias, lowerBound } = gate;
    g.data.forEach((x, at) => {
      const head = floor(at / K) % HV;
      const bias = dtBias?.data[head * K + (at % K)] ?? 0;
      g.data[at] = gateValue(x, { aLog: aLog?.data[head], bias, lowerBound });
    });
  }
  if (betaLogits) beta.data.forEach((b, at) => (beta.data[at] = betaFromLogit(b, allowNegEigval ?? false)));
  return { ...item, inputs: { q, k, v: inputs.v, g, beta }, options: rest };
}

/** The case with q and k spread over the value heads: [B, T, HV, K]. */
function perValueHead(effective: KdaCase): KdaCase {
  const { inputs } = effective;
  const [HV, H, K] = [inputs.v.shape[2], inputs.q.shape[2], inputs.q.shape[3]];
  const spread = ({ shape, data }: Float64Tensor): Float64Tensor => {
    const [B, T] = shape as [number, number];
    const result = new Float64Array(B * T * HV * K);
    for (let at = 0; at < result.length; at++) {
      const row = floor(at / K);
      const head = floor((row % HV) / (HV / H));
      result[at] = data[(floor(row / HV) * H + head) * K + (at % K)]!;
    }
    return { shape: [B, T, HV, K], data: result };
  };
  return { ...effective, inputs: { ...inputs, q: spread(inputs.q), k: spread(inputs.k) } };
}
