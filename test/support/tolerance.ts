import { attentionForwardReference } from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import { betaFromLogit, gateBackward, gateValue, normalizeRow } from '../../lib/reference/kdaTransforms';
import type { AttentionCase } from './attentionCases';
import { maxAbs, type Tolerance } from './compare';
import { ROUNDOFF, type Operand } from './dtypes';
import { kdaReference, type KdaCase } from './kdaCases';
import { runKda, type KdaResults } from './run';

// Tolerances for random cases. An error is measured against the largest expected value, and for gradients that are sums
// of terms that may cancel also against the "natural" size of those terms (test/golden/FORMAT.md).

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs, floor, max } = Math;

function rms(values: Float64Array): number {
  return Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
}

/** What a result in a dtype may be off by. The factors of float32 are for sums of a few hundred terms. */
export function randomTolerance(
  dtype: Operand,
  expected: Float64Tensor,
  natural = 0,
  naturalFactor = dtype === 'float32' ? 4e-6 : 2 * ROUNDOFF[dtype],
): Tolerance {
  const largest = maxAbs(expected.data);
  if (dtype === 'float32') return { maxAbs: 1e-5 * largest + naturalFactor * natural + 1e-7 };
  const u = ROUNDOFF[dtype];
  // Twice the distance of the smallest numbers, which have few digits left.
  const smallest = dtype === 'float16' ? 2 ** -23 : 2 ** -132;
  const cancels = natural > 10 * largest;
  return {
    maxAbs: 6 * u * largest + naturalFactor * natural + smallest + 1e-7,
    // Rounding to one of the smallest numbers costs up to half of their distance.
    ...(!cancels && largest > 64 * smallest && { rmsRatio: 4 * u + smallest / 4 / rms(expected.data) }),
  };
}

/** The tolerance of one result of KDA; q and k are normalised in float32, whatever the dtype of the operands. */
export function kdaTolerance(
  dtype: Operand,
  name: keyof KdaResults,
  expected: Float64Tensor,
  naturals: Partial<Record<keyof KdaResults, number>>,
): Tolerance {
  const factor = name === 'dq' || name === 'dk' ? 4e-6 : undefined;
  return randomTolerance(dtype, expected, naturals[name], factor);
}

/** What FORMAT.md allows of the natural size of results that are sums of terms which may cancel. */
const NATURAL_FACTORS: Partial<Record<keyof KdaResults, number>> = { dg: 4e-3, dDtBias: 1e-2, dALog: 2e-2 };

/** The same on a GPU, whose kernels round the operands of every product to bfloat16, whatever the dtype. */
export function kdaToleranceOnGpu(
  name: keyof KdaResults,
  expected: Float64Tensor,
  naturals: Partial<Record<keyof KdaResults, number>>,
): Tolerance {
  const factor = NATURAL_FACTORS[name];
  if (factor === undefined) return kdaTolerance('bfloat16', name, expected, naturals);
  // As in FORMAT.md, no bound on their rms ratio: independent roundings of the terms do not cancel.
  return { maxAbs: randomTolerance('bfloat16', expected, naturals[name], factor).maxAbs! };
}

/**
 * Natural sizes of dq, dk (max of scale Σ p |slope| (|dP| + |delta|) |k| or |q|) and dSink. The delta of a 16-bit call comes
 * from the rounded out: dOut·out is then off by a random sum of roundings, in proportion to the root of Σ (dOut out)².
 */
export function attentionNaturals(item: AttentionCase, dtype: Operand): Record<'dq' | 'dk' | 'dSink', number> {
  const { q, k, v } = item.inputs;
  const { options, dOut } = item;
  const { out, lse } = attentionForwardReference(q, k, v, options);
  const [heads, kvHeads, D, Dv] = [q.shape.at(-2)!, k.shape.at(-2)!, q.shape.at(-1)!, v.shape.at(-1)!];
  const scale = options.softmaxScale ?? D ** -0.5;
  const [dq, dk, dSink] = [new Float64Array(q.data.length), new Float64Array(k.data.length), new Float64Array(heads)];
  forEachPair(item, ({ qRow, kRow, head, lseAt }) => {
    const kvHead = floor((head * kvHeads) / heads);
    const [qAt, kAt] = [(qRow * heads + head) * D, (kRow * kvHeads + kvHead) * D];
    const [outAt, vAt] = [(qRow * heads + head) * Dv, (kRow * kvHeads + kvHead) * Dv];
    let [score, dWeight, delta, roundings] = [0, 0, 0, 0];
    for (let c = 0; c < D; c++) score += scale * q.data[qAt + c] * k.data[kAt + c];
    for (let c = 0; c < Dv; c++) {
      dWeight += dOut.data[outAt + c] * v.data[vAt + c];
      const term = dOut.data[outAt + c] * out.data[outAt + c];
      delta += term;
      roundings += term * term;
    }
    const deltaSize = dtype === 'float32' ? abs(delta) : max(abs(delta), Math.sqrt(roundings));
    const tanh = options.softcap ? Math.tanh(score / options.softcap) : 0;
    const weight = Math.exp((options.softcap ? options.softcap * tanh : score) - lse.data[lseAt]);
    const size = scale * weight * (1 - tanh * tanh) * (abs(dWeight) + deltaSize);
    for (let c = 0; c < D; c++) {
      dq[qAt + c] += size * abs(k.data[kAt + c]);
      dk[kAt + c] += size * abs(q.data[qAt + c]);
    }
    if (!options.sink) return;
    for (let c = 0; c < Dv; c++) {
      const term = weight * abs(dOut.data[outAt + c] * out.data[outAt + c]); // Σ over visible keys of p ≤ 1
      dSink[head] += Math.exp(options.sink.data[head] - lse.data[lseAt]) * term;
    }
  });
  return { dq: maxAbs(dq), dk: maxAbs(dk), dSink: maxAbs(dSink) };
}

interface Pair {
  readonly qRow: number;
  readonly kRow: number;
  readonly head: number;
  readonly lseAt: number;
}

/** Visits every visible (query, key) pair of every head. */
function forEachPair({ inputs, options }: AttentionCase, visit: (pair: Pair) => void): void {
  const { q, k } = inputs;
  const packed = options.cuSeqlensQ !== undefined;
  const heads = q.shape.at(-2)!;
  const rowsOf = (shape: readonly number[]) => Array.from({ length: shape[0] + 1 }, (_, b) => b * shape[1]);
  const cuQ = options.cuSeqlensQ ?? rowsOf(q.shape);
  const cuK = options.cuSeqlensK ?? rowsOf(k.shape);
  const [left, right] = options.window ?? [Infinity, Infinity];
  for (let n = 0; n + 1 < cuQ.length; n++) {
    const [Sq, Sk] = [cuQ[n + 1] - cuQ[n], cuK[n + 1] - cuK[n]];
    for (let i = 0; i < Sq; i++) {
      for (let j = 0; j < Sk; j++) {
        const offset = j - (i + Sk - Sq);
        if (offset < -left || offset > (options.causal ? Math.min(right, 0) : right)) continue;
        for (let head = 0; head < heads; head++) {
          const lseAt = packed ? head * q.shape[0] + cuQ[n] + i : (n * heads + head) * Sq + i;
          visit({ qRow: cuQ[n] + i, kRow: cuK[n] + j, head, lseAt });
        }
      }
    }
  }
}

/**
 * Natural sizes of dg (max of (|q dq| + |k dk|) |da/dg|), of dALog and dDtBias (root of the sum of squares), and of dq and
 * dk through the L2 norm, which takes away what lies along the row: all of it when K is 1.
 */
export function kdaNaturals(item: KdaCase): KdaNaturals {
  const effective = effectiveKdaCase(item);
  return naturalsOf(item, effective, kdaReference(perValueHead(effective)));
}

/** The same from float32 gradients, for sizes at which the reference is slow. */
export async function kdaNaturalsByCpu(item: KdaCase): Promise<KdaNaturals> {
  const effective = effectiveKdaCase(item);
  return naturalsOf(item, effective, await runKda(perValueHead(effective), { dtype: 'float32' }));
}

type KdaNaturals = Record<'dq' | 'dk' | 'dg' | 'dALog' | 'dDtBias', number>;

/** From dq and dk of each value head of the effective case. */
function naturalsOf(
  item: KdaCase,
  effective: KdaCase,
  { dq, dk }: { readonly dq: Float64Tensor; readonly dk: Float64Tensor },
): KdaNaturals {
  const { q, k, v, g } = effective.inputs;
  const [HV, K] = [v.shape[2], q.shape[3]];
  const group = HV / q.shape[2];
  const { aLog, dtBias, lowerBound } = item.options.gate ?? {};
  const dALog = new Float64Array(HV);
  const dDtBias = new Float64Array(HV * K);
  const [dqSizes, dkSizes] = [new Float64Array(q.data.length), new Float64Array(k.data.length)];
  let dg = 0;
  for (let at = 0; at < g.data.length; at++) {
    const [row, d] = [floor(at / K), at % K];
    const head = row % HV;
    const qkAt = (floor(row / HV) * q.shape[2] + floor(head / group)) * K + d;
    dqSizes[qkAt] += abs(dq.data[at]);
    dkSizes[qkAt] += abs(dk.data[at]);
    const size = abs(q.data[qkAt] * dq.data[at]) + abs(k.data[qkAt] * dk.data[at]);
    if (!item.options.gate) {
      dg = max(dg, size);
      continue;
    }
    const bias = dtBias?.data[head * K + d] ?? 0;
    const terms = gateBackward(item.inputs.g.data[at], size, { aLog: aLog?.data[head], bias, lowerBound });
    dg = max(dg, abs(terms.dx));
    dALog[head] += terms.dALog ** 2;
    dDtBias[head * K + d] += terms.dx ** 2;
  }
  const throughNorm = (x: Float64Tensor, y: Float64Tensor, sizes: Float64Array) =>
    item.options.qkL2Norm ? normNatural(x.data, y.data, sizes, K) : 0;
  return {
    dq: throughNorm(item.inputs.q, q, dqSizes),
    dk: throughNorm(item.inputs.k, k, dkSizes),
    ...{ dg, dALog: Math.sqrt(maxAbs(dALog)), dDtBias: Math.sqrt(maxAbs(dDtBias)) },
  };
}

/** Largest r (|dy| + |y| Σ|y dy|), for rows x of width K that the norm scales by r to y. */
function normNatural(x: Float64Array, y: Float64Array, sizes: Float64Array, K: number): number {
  let largest = 0;
  for (let start = 0; start < x.length; start += K) {
    let [along, squares] = [0, 0];
    for (let at = start; at < start + K; at++) {
      along += abs(y[at]) * sizes[at];
      squares += x[at] * x[at];
    }
    const r = (squares + 1e-6) ** -0.5;
    for (let at = start; at < start + K; at++) largest = max(largest, r * (sizes[at] + abs(y[at]) * along));
  }
  return largest;
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
