'use strict';
// Kimi Delta Attention as it is measured: a layer's call with the L2 norm, gate and β in the kernels, states with values first.
const path = require('node:path');
const { float64, ROOT } = require('./common.cjs');

/** @type {typeof import('../../../lib/index')} */
const { kdaBackward, kdaForward } = require(path.join(ROOT, 'dist/index.js'));

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
 * @typedef {object} Shape
 * @property {number} tokens
 * @property {number} heads
 * @property {number} [batch]
 * @property {number[]} [lengths] of packed sequences
 * @property {'bounded' | 'softplus'} [gate]
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
    options: { ...(cuSeqlens && { cuSeqlens }), ...(gate === 'bounded' && { lowerBound: -5 }) },
    flops: batch * tokens * heads * FORWARD_FLOPS,
    profiled: false,
    ...more,
  };
}

const T = 8192;
const CASES = [
  kdaCase({ tokens: T, heads: 64 }, { profiled: true, memory: true }),
  kdaCase({ tokens: T, heads: 96 }),
  kdaCase({ tokens: T, heads: 16 }),
  kdaCase({ tokens: 4096, heads: 32, batch: 2 }),
  kdaCase({ tokens: 32768, heads: 32 }),
  kdaCase({ tokens: T, heads: 64, lengths: Array.from({ length: 8 }, () => 1024) }),
  kdaCase({ tokens: T, heads: 64, lengths: [1300, 547, 2048, 963, 271, 3063] }),
  kdaCase({ tokens: T, heads: 64, gate: 'softplus' }),
  // How it grows with the tokens, and with the heads.
  ...[4096, 16384, 32768, 65536, 131072].map((tokens) => kdaCase({ tokens, heads: 16 }, { thorough: true })),
  ...[32, 128].map((heads) => kdaCase({ tokens: T, heads }, { thorough: true })),
];

/**
 * The inputs with those in float32 that have to be.
 * @param {Record<string, Tensor>} inputs @returns {Record<string, Tensor>}
 */
function operands({ aLog, dtBias, initialState, ...others }) {
  const [a, bias, state] = [aLog, dtBias, initialState].map((tensor) => tensor.to({ dtype: 'float32' }));
  return { ...others, aLog: a, dtBias: bias, initialState: state };
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

/** The last head, in the last entry of a batch. @param {string} name @param {Tensor} tensor @param {boolean} packed */
function lastHead(name, tensor, packed) {
  if (name === 'aLog' || name === 'dtBias') return tensor.slice(0, tensor.shape[0] - 1, tensor.shape[0]);
  const state = /state$/i.test(name);
  const entry = state && packed ? tensor : tensor.slice(0, tensor.shape[0] - 1, tensor.shape[0]);
  const heads = tensor.shape[state ? 1 : 2];
  return entry.slice(state ? 1 : 2, heads - 1, heads);
}

/**
 * The last head on the CPU in float32, which its own tests hold within 1e-5 of float64; the reference would take minutes.
 * @param {Record<string, Tensor>} inputs @param {Case['options']} options
 * @param {(inputs: Record<string, Tensor>) => Tensor[]} run @param {string[]} names of the results
 * @returns {Promise<Block[]>}
 */
async function reference(inputs, options, run, names) {
  const packed = options.cuSeqlens !== undefined;
  const entries = Object.entries(inputs).map(([name, tensor]) => {
    return [name, lastHead(name, tensor, packed).to({ dtype: 'float32' }).to({ device: 'cpu' })];
  });
  const results = run(operands(/** @type {Record<string, Tensor>} */ (Object.fromEntries(entries))));
  return Promise.all(
    names.map(async (name, n) => ({
      part: (/** @type {Tensor} */ result) => lastHead(name, result, packed),
      expected: (await float64(results[n])).data,
    })),
  );
}

/** @type {Record<string, Operation>} */
const KDA = {
  'kda-forward': {
    peers: 'kda.py',
    kernel: /kda_recurrence/,
    allowedError: ALLOWED_ERROR,
    cases: CASES,
    variants: { saving: { saveIntermediates: true } },
    prepare(inputs, options) {
      const ready = operands(inputs);
      return () => {
        const { outputs, saved } = forward(ready, options);
        saved.dispose();
        return outputs;
      };
    },
    reference: (inputs, options) =>
      reference(inputs, options, (head) => forward(head, options).outputs, ['out', 'finalState']),
  },
  'kda-backward': {
    peers: 'kda_backward.py',
    kernel: /kda_gradients/,
    allowedError: ALLOWED_ERROR,
    cases: CASES.map(({ inputs, flops, ...item }) => ({
      ...item,
      inputs: { ...inputs, dOut: inputs.v, dFinalState: inputs.initialState },
      flops: (flops / FORWARD_FLOPS) * BACKWARD_FLOPS,
    })),
    variants: { saving: { saveIntermediates: true } },
    prepare(inputs, options) {
      const ready = withGradient(inputs);
      const { outputs, saved } = forward(ready, options);
      for (const tensor of outputs) tensor.dispose();
      return Object.assign(() => backward(ready, saved), { retained: saved.intermediateBytes });
    },
    reference(inputs, options) {
      const names = ['dq', 'dk', 'dv', 'dg', 'dbeta', 'dInitialState'];
      return reference(inputs, options, (head) => backward(withGradient(head), forward(head, options).saved), names);
    },
  },
};

/** @param {Record<string, Tensor>} inputs @returns {Record<string, Tensor>} */
function withGradient({ dFinalState, ...others }) {
  return { ...operands(others), dFinalState: dFinalState.to({ dtype: 'float32' }) };
}

module.exports = { KDA };
