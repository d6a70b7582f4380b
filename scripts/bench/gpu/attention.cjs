'use strict';
// Attention as it is measured, forward and backward.
const path = require('node:path');
const { float64, ROOT, sliced } = require('./common.cjs');

/** @type {typeof import('../../../lib/index')} */
const { attentionBackward, attentionForward } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/reference/attention')} */
const { attentionBackwardReference, attentionForwardReference } = require(
  path.join(ROOT, 'dist/reference/attention.js'),
);

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/reference/float64').Float64Tensor} Float64Tensor
 */

const TOKENS = 16384;
const HIDDEN = 2048;
const PEERS = ['cuDNN', 'FlashAttention-2', 'FlashAttention-3'];
const SETTING =
  `A case has ${TOKENS} tokens and a width of ${HIDDEN} in all: ${TOKENS} / S sequences of ${HIDDEN} / D heads. ` +
  '"16/2 heads" are 16 of queries, 2 of keys and values.';
const CHECKED_ROWS = 8;
/** The roundoff of bfloat16, about twice what a right result has. */
const ALLOWED_ERROR = 2 ** -8;

/** @param {number} length @param {number} dim @param {boolean} causal @param {number} [kvHeads] @returns {Case} */
function attentionCase(length, dim, causal, kvHeads) {
  const [batch, heads] = [TOKENS / length, HIDDEN / dim];
  const kv = [batch, length, kvHeads ?? heads, dim];
  const grouped = kvHeads === undefined ? '' : `, ${heads}/${kvHeads} heads`;
  const pairs = causal ? (length * (length + 1)) / 2 : length * length;
  return {
    label: `D ${dim}, S ${length}, ${causal ? 'causal' : 'full'}${grouped}`,
    inputs: { q: [batch, length, heads, dim], k: kv, v: kv },
    options: { causal },
    flops: batch * heads * pairs * 4 * dim,
    profiled: length === 4096 && kvHeads === undefined,
  };
}

const ATTENTION_CASES = [
  ...[64, 128, 256].flatMap((dim) =>
    [1024, 4096, 16384].flatMap((length) => [false, true].map((causal) => attentionCase(length, dim, causal))),
  ),
  attentionCase(4096, 128, true, 2),
];

/**
 * The last rows of the last sequence, of the query heads that share the first kv head (or of that head): the mask of a causal
 * band ends at the same corner, so that the last queries alone make what the last keys get.
 * @param {readonly number[]} shape @param {number} rows @param {number} kvHeads
 */
function lastRows([batch, length, heads], rows, kvHeads) {
  return [
    [batch - 1, batch],
    [length - rows, length],
    [0, heads / kvHeads],
  ];
}

/** What the reference needs for the last queries, by name. @param {Record<string, Tensor>} inputs */
async function lastQueries(inputs) {
  const [, length, kvHeads] = inputs.k.shape;
  const entries = Object.entries(inputs).map(async ([name, tensor]) => {
    const rows = name === 'k' || name === 'v' ? length : CHECKED_ROWS;
    return [name, await float64(sliced(tensor, lastRows(tensor.shape, rows, kvHeads)))];
  });
  return /** @type {Record<string, Float64Tensor>} */ (Object.fromEntries(await Promise.all(entries)));
}

/** @param {number} result index @param {Tensor} like of its shape @param {Tensor} k @param {Float64Array} expected */
function lastBlock(result, like, k, expected) {
  return { part: { result, flat: false, slices: lastRows(like.shape, CHECKED_ROWS, k.shape[2]) }, expected };
}

/** @type {Record<string, Operation>} */
const ATTENTION = {
  'attention-forward': {
    peers: 'attention.py',
    peerNames: PEERS,
    setting: SETTING,
    kernel: /attention_fwd_kernel/,
    allowedError: ALLOWED_ERROR,
    cases: ATTENTION_CASES,
    variants: {},
    results: ['out'],
    prepare:
      ({ q, k, v }, options) =>
      () =>
        Object.values(attentionForward(q, k, v, options)),
    async reference(inputs, options) {
      const { q, k, v } = await lastQueries(inputs);
      const { out } = attentionForwardReference(q, k, v, options);
      return [lastBlock(0, inputs.q, inputs.k, out.data)];
    },
  },
  'attention-backward': {
    peers: 'attention_backward.py',
    peerNames: PEERS,
    setting: `${SETTING} "deterministic" gives gradients that are bitwise equal from run to run.`,
    kernel: /attention_bwd_kernel/,
    allowedError: ALLOWED_ERROR,
    cases: ATTENTION_CASES.map(({ inputs, flops, ...item }) => ({
      ...item,
      inputs: { ...inputs, dOut: inputs.q },
      flops: 2.5 * flops, // five products for two
    })),
    variants: { deterministic: { deterministic: true } },
    results: ['dq', 'dk', 'dv'],
    prepare({ q, k, v, dOut }, options) {
      const { out, lse } = attentionForward(q, k, v, { causal: options.causal });
      return () => {
        const { dq, dk, dv } = attentionBackward(dOut, q, k, v, out, lse, options);
        return [dq, dk, dv];
      };
    },
    async reference(inputs, options) {
      const { q, k, v } = inputs;
      const rows = await lastQueries(inputs);
      const { dq, dk, dv } = attentionBackwardReference(rows.dOut, rows.q, rows.k, rows.v, { causal: options.causal });
      const last = (/** @type {Float64Tensor} */ { shape, data }) => data.subarray(-CHECKED_ROWS * shape[3]);
      return [
        lastBlock(0, q, k, dq.data),
        // Without a mask every query sees the last keys.
        ...(options.causal ? [lastBlock(1, k, k, last(dk)), lastBlock(2, v, k, last(dv))] : []),
      ];
    },
  },
};

module.exports = { ATTENTION };
