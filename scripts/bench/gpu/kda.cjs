'use strict';
// Kimi Delta Attention as it is measured: a layer's call with the L2 norm, gate and β in the kernels, states with values first.
const path = require('node:path');
const { float64, ROOT, sliced } = require('./common.cjs');

/** @type {typeof import('../../../lib/index')} */
const warpgrad = require(path.join(ROOT, 'dist/index.js'));
const { kdaBackward, kdaForward } = warpgrad;

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Block} Block
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/index').KdaForwardOptions} KdaForwardOptions
 */

const DIM = 128;
const CHUNK = 64;
/** A result goes through two or three matrix products with operands in bfloat16; about twice what a right one has. */
const ALLOWED_ERROR = 2 ** -7;
/** As counted in native/backends/cpu/kda/README.md, a token and head; triangular products count half. */
const FORWARD_FLOPS = 4 * CHUNK * DIM + 6 * DIM * DIM;
const BACKWARD_FLOPS = 10 * CHUNK * DIM + 12 * DIM * DIM;

/**
 * Gates by what a case's name says of them: where softplus, with the mean, spread and limits of A_log and dt_bias.
 * @type {Record<string, Case['options']>}
 */
const GATES = {
  bounded: { lowerBound: -5 },
  // 0.1 nats a token in the median, 0.2 in the mean.
  'weak decay': { lowerBound: -5, moments: { aLog: [0, 0.2, -1, 1], dtBias: [-4, 1, -8, 0] } },
  // As layers of Mamba-2 start in public code: A between 1 and 16, dt between 0.001 and 0.1 with its logarithm even; means and
  // spreads are those of these distributions. With a normal x 0.07 nats a token in the median, 0.25 in the mean.
  softplus: { moments: { aLog: [1.96, 0.63, 0, Math.log(16)], dtBias: [-4.6, 1.33, Math.log(0.001), -2.25] } },
  // 30 nats a token in the median: far more over 16 tokens than may be divided by.
  'steep softplus': { moments: { aLog: [2, 1, -2, 6], dtBias: [4.6, 1, 0, 10] } },
};

/**
 * @typedef {object} Shape
 * @property {number} tokens
 * @property {number} heads
 * @property {number} [batch]
 * @property {number[]} [lengths] of packed sequences
 * @property {'bounded' | 'weak decay' | 'softplus' | 'steep softplus'} [gate]
 *
 * @param {Shape} shape @param {Partial<Case>} [more] @returns {Case}
 */
function kdaCase({ tokens, heads, batch = 1, lengths, gate = 'bounded' }, more) {
  const matrix = [batch, tokens, heads, DIM];
  const sequences = lengths?.length ?? batch;
  const cuSeqlens = lengths?.reduce((offsets, length) => [...offsets, offsets[offsets.length - 1] + length], [0]);
  const packed = lengths ? `, packed ${new Set(lengths).size === 1 ? `${sequences} × ${lengths[0]}` : lengths}` : '';
  return {
    label: `${batch > 1 ? `B ${batch}, ` : ''}T ${tokens}, H ${heads}${packed}${gate === 'bounded' ? '' : `, ${gate}`}`,
    inputs: {
      ...{ q: matrix, k: matrix, v: matrix, g: matrix, beta: matrix.slice(0, 3) },
      ...{ aLog: [heads], dtBias: [heads, DIM], initialState: [sequences, heads, DIM, DIM] },
    },
    options: { ...(cuSeqlens && { cuSeqlens }), ...GATES[gate] },
    flops: batch * tokens * heads * FORWARD_FLOPS,
    profiled: false,
    ...more,
  };
}

const SETTING =
  `H heads with K and V of ${DIM}; B is 1 where it is not named, and the gate is bounded (lower bound ${GATES.bounded.lowerBound}). ` +
  "q, k, v, the gate's input and the logits of β are bfloat16; L2 norm, gate, sigmoid, initial and final state are part of the call. " +
  '"saving" keeps what the backward would compute again.';

const T = 8192;
const CASES = [
  kdaCase({ tokens: T, heads: 64 }, { profiled: true, memory: true, curves: { heads: 64 } }),
  kdaCase({ tokens: T, heads: 96 }, { curves: { heads: 96 } }),
  kdaCase({ tokens: T, heads: 16 }, { curves: { tokens: T, heads: 16 } }),
  kdaCase({ tokens: 4096, heads: 32, batch: 2 }),
  kdaCase({ tokens: 32768, heads: 32 }),
  kdaCase({ tokens: T, heads: 64, lengths: Array.from({ length: 8 }, () => 1024) }),
  kdaCase({ tokens: T, heads: 64, lengths: [1300, 547, 2048, 963, 271, 3063] }),
  kdaCase({ tokens: T, heads: 64, gate: 'weak decay' }),
  kdaCase({ tokens: T, heads: 64, gate: 'softplus' }),
  kdaCase({ tokens: T, heads: 64, gate: 'steep softplus' }),
  // How it grows with the tokens, and with the heads.
  ...[4096, 16384, 32768, 65536, 131072].map((tokens) =>
    kdaCase({ tokens, heads: 16 }, { thorough: true, curves: { tokens } }),
  ),
  ...[32, 128].map((heads) => kdaCase({ tokens: T, heads }, { thorough: true, curves: { heads } })),
];

/**
 * The inputs with those in float32 that have to be, and the gate's with their moments.
 * @param {Record<string, Tensor>} inputs @param {Case['options']} options @returns {Record<string, Tensor>}
 */
function operands(inputs, { moments = {} }) {
  const names = ['aLog', 'dtBias', 'initialState', 'dFinalState'].filter((name) => name in inputs);
  const converted = names.map((name) => {
    const tensor = inputs[name].to({ dtype: 'float32' });
    if (!(name in moments)) return [name, tensor];
    const [mean, spread, least, most] = moments[name];
    const values = Float32Array.from(tensor.dataSync(), (x) => Math.min(most, Math.max(least, mean + spread * x)));
    return [name, warpgrad.Tensor.from(values, tensor.shape, { device: tensor.device })];
  });
  return { ...inputs, ...Object.fromEntries(converted) };
}

/** @param {Record<string, Tensor>} inputs @param {Case['options']} options @returns {KdaForwardOptions} */
function callOptions({ aLog, dtBias, initialState }, { cuSeqlens, lowerBound, saveIntermediates }) {
  return {
    ...{ qkL2Norm: true, betaLogits: true, stateLayout: 'vk', initialState, outputFinalState: true },
    gate: { aLog, dtBias, ...(lowerBound !== undefined && { lowerBound }) },
    ...(cuSeqlens && { cuSeqlens }),
    ...(saveIntermediates && { saveIntermediates }),
  };
}

/** @param {Record<string, Tensor>} inputs @param {Case['options']} options */
function forward(inputs, options) {
  const { q, k, v, g, beta } = inputs;
  const { out, finalState, saved } = kdaForward(q, k, v, g, beta, callOptions(inputs, options));
  return { outputs: [out, /** @type {Tensor} */ (finalState)], saved };
}

/** @param {Record<string, Tensor>} inputs @param {import('../../../lib/index').KdaSaved} saved */
function backward({ dOut, dFinalState }, saved) {
  const { dq, dk, dv, dg, dbeta, dInitialState, dALog, dDtBias } = kdaBackward(dOut, saved, { dFinalState });
  return /** @type {Tensor[]} */ ([dq, dk, dv, dg, dbeta, dInitialState, dALog, dDtBias]);
}

/**
 * Slices of the last head in the last entry of a batch; of states of packed sequences all.
 * @param {string} name @param {readonly number[]} shape @param {boolean} packed
 */
function lastHead(name, shape, packed) {
  const last = (/** @type {number} */ extent) => [extent - 1, extent];
  if (name === 'aLog' || name === 'dtBias') return [last(shape[0])];
  const state = /state$/i.test(name);
  if (state) return [packed ? [0, shape[0]] : last(shape[0]), last(shape[1])];
  return [last(shape[0]), [0, shape[1]], last(shape[2])];
}

/**
 * The last head on the CPU in float32, which its own tests hold within 1e-5 of float64; the reference would take minutes.
 * @param {Record<string, Tensor>} inputs @param {Case['options']} options
 * @param {(inputs: Record<string, Tensor>) => Tensor[]} run @param {Record<string, Tensor>} like by the names of the results,
 * an input of that shape
 * @returns {Promise<Block[]>}
 */
async function reference(inputs, options, run, like) {
  const packed = options.cuSeqlens !== undefined;
  const entries = Object.entries(inputs).map(([name, tensor]) => {
    const head = sliced(tensor, lastHead(name, tensor.shape, packed));
    return [name, head.to({ dtype: 'float32' }).to({ device: 'cpu' })];
  });
  const results = run(operands(/** @type {Record<string, Tensor>} */ (Object.fromEntries(entries)), options));
  return Promise.all(
    Object.entries(like).map(async ([name, { shape }], result) => ({
      part: { result, flat: false, slices: lastHead(name, shape, packed) },
      expected: (await float64(results[result])).data,
    })),
  );
}

/** A forward and its backward. @param {Record<string, Tensor>} inputs @param {Case['options']} options */
function step(inputs, options) {
  const { outputs, saved } = forward(inputs, options);
  try {
    return backward(inputs, saved);
  } finally {
    for (const tensor of outputs) tensor.dispose(); // also where memory is too short, as it is on purpose when it is measured
    saved.dispose();
  }
}

/** @param {Case} item of the forward @param {number} flops a token and head @returns {Case} */
function withGradientCase(item, flops) {
  const { v, initialState } = item.inputs;
  return {
    ...item,
    inputs: { ...item.inputs, dOut: v, dFinalState: initialState },
    flops: (item.flops / FORWARD_FLOPS) * flops,
  };
}

/** What the operations that give gradients have in common. */
const withGradients = {
  peerNames: ['flash-linear-attention', 'flash-linear-attention saving'],
  setting: SETTING,
  tuned: true,
  allowedError: ALLOWED_ERROR,
  variants: { saving: { saveIntermediates: true } },
  results: ['dq', 'dk', 'dv', 'dg', 'dbeta', 'dInitialState'],
  /** @type {Operation['reference']} */
  reference(inputs, options) {
    const { q, k, v, g, beta, initialState } = inputs;
    const like = { dq: q, dk: k, dv: v, dg: g, dbeta: beta, dInitialState: initialState };
    return reference(inputs, options, (head) => step(head, options), like);
  },
};

/** @type {Record<string, Operation>} */
const KDA = {
  'kda-forward': {
    peers: 'kda.py',
    peerNames: ['flash-linear-attention', 'FlashKDA'],
    setting: SETTING,
    tuned: true,
    kernel: /kda_recurrence/,
    allowedError: ALLOWED_ERROR,
    cases: CASES,
    variants: { saving: { saveIntermediates: true } },
    results: ['out', 'finalState'],
    prepare(inputs, options) {
      const ready = operands(inputs, options);
      return () => {
        const { outputs, saved } = forward(ready, options);
        saved.dispose();
        return outputs;
      };
    },
    reference: (inputs, options) =>
      reference(inputs, options, (head) => forward(head, options).outputs, {
        out: inputs.v,
        finalState: inputs.initialState,
      }),
  },
  'kda-backward': {
    ...withGradients,
    peers: 'kda_backward.py',
    kernel: /kda_gradients/,
    cases: CASES.map((item) => withGradientCase(item, BACKWARD_FLOPS)),
    prepare(inputs, options) {
      const ready = operands(inputs, options);
      const { outputs, saved } = forward(ready, options);
      for (const tensor of outputs) tensor.dispose();
      return Object.assign(() => backward(ready, saved), { retained: saved.intermediateBytes });
    },
  },
  'kda-step': {
    ...withGradients,
    peers: 'kda_step.py',
    kernel: /kda_gradients/,
    cases: CASES.map((item) => withGradientCase(item, FORWARD_FLOPS + BACKWARD_FLOPS)),
    prepare(inputs, options) {
      const ready = operands(inputs, options);
      return () => step(ready, options);
    },
  },
};

module.exports = { KDA };
