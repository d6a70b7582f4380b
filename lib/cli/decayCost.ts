import { sequenceRows, type Float64Tensor } from '../reference/float64';
import { kdaBackwardReference, type KdaReferenceInputs, type KdaReferenceOptions } from '../reference/kda';
import { gateBackward, normalizeRow } from '../reference/kdaTransforms';
import { type Tensors } from './precision';

/** For each result, the size of the terms that one rounding spoils. */
export type TermSizes = Readonly<Record<string, number>>;

/**
 * The gradient of a decay is a difference of large terms (docs/kda.md §3): q·dq and k·dk of a token and of all later ones
 * in its sequence, which nearly cancel. Rounding each of them once, independently, leaves an error in `dg` as large as the
 * root of the sum of their squares, and in `dALog` and `dDtBias` the same, weighted with all the tokens that a term
 * reaches. Moving the inputs does not show this: there the terms move together.
 */
export function decayTermSizes(inputs: Tensors, options: KdaReferenceOptions): TermSizes {
  const { qkL2Norm, gate, ...rest } = options;
  const entering = { ...inputs, ...(qkL2Norm && { q: normalized(inputs['q']), k: normalized(inputs['k']) }) };
  const { q, k, g } = entering as Tensors as unknown as KdaReferenceInputs;
  const { dq, dk } = kdaBackwardReference(inputs['dOut'], entering as never, {
    ...rest,
    ...(gate && { gate }),
    ...('dFinalState' in inputs && { dFinalState: inputs['dFinalState'] }),
  });
  const [batch, length, heads, dim] = q.shape as [number, number, number, number];
  const valueHeads = g.shape[2];
  const squares = { dALog: new Float64Array(valueHeads), dDtBias: new Float64Array(valueHeads * dim) };
  let dg = 0;
  for (const { start, length: tokens } of sequenceRows(options.cuSeqlens, batch, length)) {
    for (let channel = 0; channel < valueHeads * dim; channel++) {
      const [head, d] = [Math.floor(channel / dim), channel % dim];
      let [reachOfA, reachOfBias, later] = [0, 0, 0];
      const slopes: number[] = [];
      const terms: number[] = [];
      for (let row = start; row < start + tokens; row++) {
        const at = (row * heads + Math.floor((head * heads) / valueHeads)) * dim + d;
        const term = Math.abs(q.data[at] * dq.data[at]) + Math.abs(k.data[at] * dk.data[at]);
        const slope = gateSlope(g.data[row * valueHeads * dim + channel], gate, head, channel);
        reachOfA += Math.abs(slope.dALog);
        reachOfBias += Math.abs(slope.dx);
        squares.dALog[head] += (term * reachOfA) ** 2;
        squares.dDtBias[channel] += (term * reachOfBias) ** 2;
        slopes.push(Math.abs(slope.dx));
        terms.push(term);
      }
      for (let t = tokens - 1; t >= 0; t--) {
        later += terms[t] ** 2;
        dg = Math.max(dg, slopes[t] * Math.sqrt(later));
      }
    }
  }
  return { dg, dALog: Math.sqrt(Math.max(...squares.dALog)), dDtBias: Math.sqrt(Math.max(...squares.dDtBias)) };
}

/** The rows of the last dimension after the L2 norm. */
function normalized({ shape, data }: Float64Tensor): Float64Tensor {
  const result = data.slice();
  const dim = shape[shape.length - 1];
  for (let at = 0; at < result.length; at += dim)
    normalizeRow(data.subarray(at, at + dim), result.subarray(at, at + dim));
  return { shape, data: result };
}

/** The derivatives of a gate, by its input and by its `aLog`. */
function gateSlope(x: number, gate: KdaReferenceOptions['gate'], head: number, channel: number) {
  if (!gate) return { dx: 1, dALog: 0 };
  const { aLog, dtBias, lowerBound } = gate;
  return gateBackward(x, 1, { aLog: aLog?.data[head], bias: dtBias ? dtBias.data[channel] : 0, lowerBound });
}
