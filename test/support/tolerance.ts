import { attentionForwardReference } from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import type { AttentionCase } from './attentionCases';
import { maxAbs, type Tolerance } from './compare';
import { ROUNDOFF, type Operand } from './dtypes';

// Tolerances for random cases. An error is measured against the largest expected value, and for gradients that are sums
// of terms that may cancel also against the "natural" size of those terms (test/golden/FORMAT.md).

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs, floor, max } = Math;

/** How large numbers are. */
export interface Size {
  readonly largest: number;
  readonly rms: number;
}

export function sizeOf(values: Float64Array): Size {
  return { largest: maxAbs(values), rms: Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length) };
}

/** What a result in a dtype may be off by, where its terms and their roundings are of size `terms`. */
export function roundedTolerance(dtype: Operand, expected: Size, terms = expected): Tolerance {
  if (dtype === 'float32') return { maxAbs: 1e-5 * terms.largest + 1e-7 };
  const u = ROUNDOFF[dtype];
  // Twice the distance of the smallest numbers, which have few digits left.
  const smallest = dtype === 'float16' ? 2 ** -23 : 2 ** -132;
  return {
    maxAbs: 6 * u * terms.largest + smallest + 1e-7,
    // Rounding to one of the smallest numbers costs up to half of their distance.
    ...(terms.largest > 64 * smallest && { rmsRatio: (4 * u * terms.rms + smallest / 4) / expected.rms }),
  };
}

/** The same with `naturalFactor` of the size of terms that may cancel; the factors of float32 are for sums of a few hundred. */
export function randomTolerance(
  dtype: Operand,
  expected: Float64Tensor,
  natural = 0,
  naturalFactor = dtype === 'float32' ? 4e-6 : 2 * ROUNDOFF[dtype],
): Tolerance {
  const size = sizeOf(expected.data);
  const { maxAbs, rmsRatio } = roundedTolerance(dtype, size);
  // Of a sink's gradient for a few heads the rms says no more than the largest, without what cancels.
  const fewSums = expected.shape.length === 1 && expected.data.length < 8;
  const judged = natural <= 10 * size.largest && (natural === 0 || !fewSums);
  return { maxAbs: maxAbs! + naturalFactor * natural, ...(rmsRatio !== undefined && judged && { rmsRatio }) };
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
