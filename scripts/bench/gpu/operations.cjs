'use strict';
// What is measured: an entry an operation. Another operation is another entry, with its peers in peers/<name>.py.
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../../..');
/** @type {typeof import('../../../lib/index')} */
const { attentionForward } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/reference/attention')} */
const { attentionForwardReference } = require(path.join(ROOT, 'dist/reference/attention.js'));

/**
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/reference/float64').Float64Tensor} Float64Tensor
 *
 * @typedef {object} Case one shape of an operation
 * @property {string} label
 * @property {Record<string, number[]>} inputs the shape of each, bfloat16 normal numbers
 * @property {Record<string, any>} options of the call
 * @property {number} flops of a call, as the mathematics needs them
 * @property {boolean} profiled whether `--ncu` looks at it
 *
 * @typedef {object} Operation
 * @property {string} peers the Python program with the other implementations
 * @property {RegExp} kernel the main kernel's name, for `--ncu`
 * @property {Case[]} cases
 * @property {(inputs: Record<string, Tensor>, options: Case['options']) => () => Tensor[]} prepare what is timed; the first
 * result is the one that is compared
 * @property {(inputs: Record<string, Tensor>, options: Case['options']) => Promise<Block>} reference a part of the first
 * result in float64
 *
 * @typedef {object} Block
 * @property {(result: Tensor) => Tensor} part
 * @property {Float64Array} expected
 */

const TOKENS = 16384;
const HIDDEN = 2048;
const CHECKED_ROWS = 48;

/** @param {Tensor} tensor @returns {Promise<Float64Tensor>} */
async function float64(tensor) {
  const values = await tensor.to({ dtype: 'float32' }).data();
  return { shape: tensor.shape, data: new Float64Array(values) };
}

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

/** @type {Record<string, Operation>} */
const OPERATIONS = {
  'attention-forward': {
    peers: 'attention.py',
    kernel: /attention_fwd_kernel/,
    cases: [
      ...[64, 128, 256].flatMap((dim) =>
        [1024, 4096, 16384].flatMap((length) => [false, true].map((causal) => attentionCase(length, dim, causal))),
      ),
      attentionCase(4096, 128, true, 2),
    ],
    prepare:
      ({ q, k, v }, options) =>
      () =>
        Object.values(attentionForward(q, k, v, options)),
    async reference({ q, k, v }, options) {
      // The last rows of the first head of the last sequence: the mask of a causal band ends at the same corner.
      const [batch, length] = q.shape;
      const last = (/** @type {Tensor} */ tensor, /** @type {number} */ rows) =>
        tensor
          .slice(0, batch - 1, batch)
          .slice(1, length - rows, length)
          .slice(2, 0, 1);
      const [queries, keys, values] = await Promise.all(
        [last(q, CHECKED_ROWS), last(k, length), last(v, length)].map(float64),
      );
      const { out } = attentionForwardReference(queries, keys, values, options);
      return { part: (result) => last(result, CHECKED_ROWS), expected: out.data };
    },
  },
};

module.exports = { float64, OPERATIONS, ROOT };
