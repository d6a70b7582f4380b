import * as tf from '@tensorflow/tfjs';
import type { TfjsAttentionOptions, TfjsKdaOptions } from '../../lib/integrations/tfjs';

// The formulas of both operations in plain operations of TensorFlow.js, which derives their gradients itself.

/** Attention of one batch of equally long sequences: q [B, Sq, H, D] → [B, Sq, H, Dv]. */
export function naiveAttention(
  q: tf.Tensor,
  k: tf.Tensor,
  v: tf.Tensor,
  options: TfjsAttentionOptions = {},
): tf.Tensor {
  if (options.cuSeqlensQ) return packedAttention(q, k, v, options);
  const [, queries, heads, headDim] = q.shape as [number, number, number, number];
  const keys = k.shape[1]!;
  const toHeads = (x: tf.Tensor) => tf.transpose(repeatHeads(x, heads), [0, 2, 1, 3]);
  const { softmaxScale = headDim ** -0.5, softcap = 0, sink } = options;
  let scores = tf.mul(tf.matMul(toHeads(q), toHeads(k), false, true), softmaxScale);
  if (softcap > 0) scores = tf.mul(tf.tanh(tf.div(scores, softcap)), softcap);

  const visible = visibility(queries, keys, options);
  const exponentials = tf.mul(tf.exp(scores), visible);
  let total = tf.sum(exponentials, -1, true);
  if (sink) total = tf.add(total, tf.reshape(tf.exp(sink), [1, heads, 1, 1]));
  // A row that sees nothing gives 0, not 0 / 0.
  const blind = tf.cast(tf.equal(tf.sum(visible, -1, true), 0), 'float32');
  const weights = tf.div(exponentials, tf.add(total, blind));
  return tf.transpose(tf.matMul(weights, toHeads(v)), [0, 2, 1, 3]);
}

function visibility(
  queries: number,
  keys: number,
  { causal, window = [Infinity, Infinity] }: TfjsAttentionOptions,
): tf.Tensor {
  const [left, right] = [window[0], causal ? 0 : window[1]];
  const rows = Array.from({ length: queries }, (_, i) =>
    Array.from({ length: keys }, (_, j) => {
      const offset = j - (i + keys - queries);
      return Number(-left <= offset && offset <= right);
    }),
  );
  return tf.tensor2d(rows, [queries, keys], 'float32');
}

function packedAttention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, options: TfjsAttentionOptions): tf.Tensor {
  const { cuSeqlensQ, cuSeqlensK, ...rest } = options;
  const pieces = pairs(cuSeqlensQ as number[]).map(([start, end], n) => {
    const [startK, endK] = pairs(cuSeqlensK as number[])[n];
    const piece = naiveAttention(rows(q, start, end), rows(k, startK, endK), rows(v, startK, endK), rest);
    return tf.squeeze(piece, [0]);
  });
  return tf.concat(pieces, 0);
}

/** Kimi Delta Attention, token by token; `cuSeqlens` cuts the tokens of the one batch entry. */
export function naiveKda(
  [q, k, v, g, beta]: readonly [tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
  options: TfjsKdaOptions = {},
): { out: tf.Tensor; finalState: tf.Tensor } {
  const heads = v.shape[2]!;
  const normalise = (x: tf.Tensor) => {
    const long = repeatHeads(x, heads);
    return options.qkL2Norm ? tf.mul(long, tf.rsqrt(tf.add(tf.sum(tf.square(long), -1, true), 1e-6))) : long;
  };
  let strength = options.betaLogits ? tf.sigmoid(beta) : beta;
  if (options.betaLogits && options.allowNegEigval) strength = tf.mul(strength, 2);
  const scale = options.scale ?? q.shape[3]! ** -0.5;
  const operands = [tf.mul(normalise(q), scale), normalise(k), v, naiveGate(g, options), strength] as const;

  const vk = options.stateLayout === 'vk';
  const swap = (state: tf.Tensor) => (vk ? tf.transpose(state, [0, 1, 3, 2]) : state);
  const [batch, tokens, , keyDim] = [...q.shape] as [number, number, number, number];
  const initial = options.initialState
    ? swap(options.initialState)
    : tf.zeros([options.cuSeqlens ? (options.cuSeqlens as number[]).length - 1 : batch, heads, keyDim, v.shape[3]!]);
  if (!options.cuSeqlens) {
    const { out, state } = recurrence(operands, initial, 0, tokens);
    return { out: out!, finalState: swap(state) };
  }
  const runs = pairs(options.cuSeqlens as number[]).map(([start, end], n) =>
    recurrence(operands, rows(initial, n, n + 1, false), start, end),
  );
  return {
    out: tf.concat(
      runs.flatMap(({ out }) => out ?? []),
      1,
    ),
    finalState: swap(
      tf.concat(
        runs.map(({ state }) => state),
        0,
      ),
    ),
  };
}

function naiveGate(g: tf.Tensor, { gate }: TfjsKdaOptions): tf.Tensor {
  if (!gate) return g;
  const [heads, keyDim] = g.shape.slice(2) as [number, number];
  const x = gate.dtBias ? tf.add(g, tf.reshape(gate.dtBias, [heads, keyDim])) : g;
  const slope = gate.aLog ? tf.reshape(tf.exp(gate.aLog), [heads, 1]) : tf.ones([heads, 1]);
  if (gate.lowerBound !== undefined) return tf.mul(tf.sigmoid(tf.mul(slope, x)), gate.lowerBound);
  return tf.neg(tf.mul(slope, tf.softplus(x)));
}

function recurrence(
  operands: readonly [tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
  initial: tf.Tensor,
  start: number,
  end: number,
): { out?: tf.Tensor; state: tf.Tensor } {
  let state = initial;
  const outs: tf.Tensor[] = [];
  for (let t = start; t < end; t++) {
    // Columns [B, HV, ·, 1] of this token; beta [B, HV, 1, 1].
    const [q, k, v, g, beta] = operands.map((x) => {
      const [batch, , heads, inner = 1] = x.shape as [number, number, number, number?];
      const begin = x.shape.map((_, dim) => (dim === 1 ? t : 0));
      const size = x.shape.map((extent, dim) => (dim === 1 ? 1 : extent));
      return tf.reshape(tf.slice(x, begin, size), [batch, heads, inner, 1]);
    }) as [tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor];
    state = tf.mul(tf.exp(g), state);
    const error = tf.sub(v, tf.matMul(state, k, true));
    state = tf.add(state, tf.mul(beta, tf.matMul(k, error, false, true)));
    outs.push(tf.squeeze(tf.matMul(state, q, true), [3]));
  }
  return outs.length > 0 ? { out: tf.stack(outs, 1), state } : { state };
}

/** [B, S, H, D] with each head repeated until there are `heads`. */
function repeatHeads(x: tf.Tensor, heads: number): tf.Tensor {
  const group = heads / x.shape[2]!;
  if (group === 1) return x;
  const sources = Array.from({ length: heads }, (_, head) => Math.floor(head / group));
  return tf.gather(x, tf.tensor1d(sources, 'int32'), 2);
}

/** Entries of the first dimension, with a batch dimension of 1 before it. */
function rows(x: tf.Tensor, start: number, end: number, expand = true): tf.Tensor {
  const piece = tf.slice(x, [start], [end - start]);
  return expand ? tf.expandDims(piece, 0) : piece;
}

function pairs(offsets: readonly number[]): [number, number][] {
  return offsets.slice(1).map((end, n) => [offsets[n], end]);
}
