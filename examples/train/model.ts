/** A language model of two layers: Kimi Delta Attention, then attention, each followed by a perceptron. */
import * as tf from '@tensorflow/tfjs-core';
import { attention, kda, kdaWithState } from 'warpgrad/tfjs';
import { embed, linear, rmsNorm, squaredRelu } from './operations';
import type { Placements } from './placement';
import type { Random } from './random';

export interface ModelConfig {
  readonly vocabulary: number;
  readonly width: number;
  readonly heads: number;
  /** Width of the perceptrons' hidden layer. */
  readonly hidden: number;
  /** Width of the bottleneck through which the decay of each key channel is computed. */
  readonly gateRank: number;
  /** How many of the last bytes are embedded at each position, each by a table of its own. */
  readonly lookback: number;
}

export const DEFAULT_CONFIG = { width: 128, heads: 4, hidden: 384, gateRank: 32, lookback: 4 } as const;

export type Parameters = Readonly<Record<string, tf.Variable>>;

/** What the layers keep of the tokens read so far, for reading on. */
export type Memory = {
  readonly state: tf.Tensor;
  readonly keys: tf.Tensor4D;
  readonly values: tf.Tensor4D;
};

/** The memory of one sequence of which nothing has been read. */
export function emptyMemory({ width, heads }: ModelConfig): Memory {
  const head = width / heads;
  return {
    state: tf.zeros([1, heads, head, head]),
    keys: tf.zeros([1, 0, heads, head]),
    values: tf.zeros([1, 0, heads, head]),
  };
}

/** The shape of every parameter, in the order in which they are initialised. */
export function parameterShapes(config: ModelConfig): Record<string, number[]> {
  const { vocabulary, width, heads, hidden, gateRank, lookback } = config;
  const perceptron = (name: string) => ({
    [`${name}.up`]: [width, hidden],
    [`${name}.down`]: [hidden, width],
  });
  return {
    embedding: [lookback * vocabulary, width],
    'kda.q': [width, width],
    'kda.k': [width, width],
    'kda.v': [width, width],
    'kda.gateDown': [width, gateRank],
    'kda.gateUp': [gateRank, width],
    'kda.beta': [width, heads],
    'kda.aLog': [heads],
    'kda.dtBias': [heads, width / heads],
    'kda.outGate': [width, width],
    'kda.out': [width, width],
    ...perceptron('mlp1'),
    'attention.q': [width, width],
    'attention.k': [width, width],
    'attention.v': [width, width],
    'attention.sink': [heads],
    'attention.out': [width, width],
    ...perceptron('mlp2'),
    unembedding: [width, vocabulary],
  };
}

export function initialise(config: ModelConfig, random: Random): Record<string, Float32Array> {
  const values: Record<string, Float32Array> = {};
  for (const [name, shape] of Object.entries(parameterShapes(config))) {
    const size = shape.reduce((product, extent) => product * extent, 1);
    values[name] = new Float32Array(size).map(initialiser(name, shape, random));
  }
  return values;
}

function initialiser(name: string, shape: readonly number[], random: Random): () => number {
  // Each residual branch starts as zero, so that the model starts as a bigram-like one and grows from there.
  if (/\.(out|down|sink)$/.test(name) || name === 'unembedding') return () => 0;
  if (name === 'kda.aLog') return () => Math.log(1 + 15 * random.uniform());
  if (name === 'kda.dtBias') {
    // softplus(bias) is the step of the decay, between 0.001 and 0.1, evenly on the logarithmic scale.
    return () => Math.log(Math.expm1(Math.exp(Math.log(0.001) + random.uniform() * Math.log(100))));
  }
  const scale = name === 'embedding' ? 0.5 : 1 / Math.sqrt(shape[0]);
  return () => scale * random.normal();
}

/**
 * Logits [B·T, vocabulary] for tokens given as sums of one-hot rows [B·T, lookback·vocabulary]. With a `memory`, the tokens
 * continue those read before, and the memory that includes them comes back.
 */
export function forward(
  parameters: Parameters,
  { width, heads }: ModelConfig,
  hot: tf.Tensor2D,
  batch: number,
  placements: Placements,
  memory?: Memory,
): { logits: tf.Tensor2D; memory?: Memory } {
  const p = (name: string) => parameters[name] as unknown as tf.Tensor2D;
  const rows = hot.shape[0];
  const split = (x: tf.Tensor2D) => tf.reshape<tf.Rank.R4>(x, [batch, rows / batch, heads, width / heads]);
  const merge = (x: tf.Tensor) => tf.reshape<tf.Rank.R2>(x, [rows, width]);
  const perceptron = (x: tf.Tensor2D, name: string) =>
    tf.add<tf.Tensor2D>(x, linear(squaredRelu(linear(rmsNorm(x), p(`${name}.up`))), p(`${name}.down`)));

  let x = embed(hot, p('embedding'));

  let h = rmsNorm(x);
  const [q, k, v] = [split(linear(h, p('kda.q'))), split(linear(h, p('kda.k'))), split(linear(h, p('kda.v')))];
  const decay = split(linear(linear(h, p('kda.gateDown')), p('kda.gateUp')));
  const beta = tf.reshape(linear(h, p('kda.beta')), [batch, rows / batch, heads]);
  const gate = { aLog: p('kda.aLog'), dtBias: p('kda.dtBias') };
  const options = { qkL2Norm: true, betaLogits: true, gate, ...placements.kda };
  const { out, finalState } = memory
    ? kdaWithState(q, k, v, decay, beta, { ...options, initialState: memory.state })
    : { out: kda(q, k, v, decay, beta, options) };
  const gated = tf.mul<tf.Tensor2D>(merge(rmsNorm(out)), tf.sigmoid(linear(h, p('kda.outGate'))));
  x = tf.add(x, linear(gated, p('kda.out')));
  x = perceptron(x, 'mlp1');

  // No encoding of positions: the KDA layer below knows the order of the tokens.
  h = rmsNorm(x);
  const query = split(linear(h, p('attention.q')));
  let [keys, values] = [split(linear(h, p('attention.k'))), split(linear(h, p('attention.v')))];
  if (memory) [keys, values] = [tf.concat([memory.keys, keys], 1), tf.concat([memory.values, values], 1)];
  const seen = attention(query, keys, values, { causal: true, sink: p('attention.sink'), ...placements.attention });
  x = tf.add(x, linear(merge(seen), p('attention.out')));
  x = perceptron(x, 'mlp2');

  const logits = linear(rmsNorm(x), p('unembedding'));
  return finalState ? { logits, memory: { state: finalState, keys, values } } : { logits };
}

/**
 * The last `lookback` tokens up to each position of each window, from position `first` on, as sums of one-hot rows. Nothing
 * is known of what stands before a window.
 */
export function multiHot(
  windows: readonly ArrayLike<number>[],
  { vocabulary, lookback }: ModelConfig,
  first = 0,
): tf.Tensor2D {
  const columns = lookback * vocabulary;
  const length = windows[0].length;
  const data = new Float32Array(windows.length * (length - first) * columns);
  let row = 0;
  for (const window of windows) {
    for (let i = first; i < length; i++, row += columns) {
      for (let back = 0; back < lookback && back <= i; back++) data[row + back * vocabulary + window[i - back]] = 1;
    }
  }
  return tf.tensor2d(data, [row / columns, columns]);
}
