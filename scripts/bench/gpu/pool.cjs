'use strict';
// Random numbers that all implementations share: a block of bfloat16 normal numbers, repeated on the GPU until every input
// is a part of it. Its size is prime, so that rows of no shape repeat at the same places.
const fs = require('node:fs');
const path = require('node:path');
const { ROOT } = require('./common.cjs');

/** @type {typeof import('../../../lib/index')} */
const { Tensor } = require(path.join(ROOT, 'dist/index.js'));

const TABLE_SIZE = 2 ** 16;
const BLOCK_SIZE = 16_777_213;

/** Normal numbers, each as likely as the other, as bits of bfloat16. @param {() => number} uniform in [0, 1) */
function normalTable(uniform) {
  const values = Float32Array.from({ length: TABLE_SIZE }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    return radius * Math.cos(2 * Math.PI * uniform());
  });
  const bits = new Uint32Array(values.buffer);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

/** The block. @param {number} seed @returns {Uint16Array} bits of bfloat16 */
function normalNumbers(seed) {
  let state = seed;
  const draw = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
  const table = normalTable(() => draw() / 2 ** 32);
  return new Uint16Array(BLOCK_SIZE).map(() => table[draw() >>> 16]);
}

/**
 * @param {Uint16Array} numbers the block @param {number} size @param {import('../../../lib/index').Device} device
 * @returns {import('../../../lib/index').Tensor}
 */
function repeated(numbers, size, device) {
  const block = Tensor.from(numbers, [numbers.length], { dtype: 'bfloat16', device });
  const pool = Tensor.empty([size], { dtype: 'bfloat16', device });
  for (let at = 0; at < size; at += numbers.length) {
    const length = Math.min(numbers.length, size - at);
    pool.slice(0, at, at + length).copyFrom(block.slice(0, 0, length));
  }
  return pool;
}

/** @param {string} file @param {Uint16Array} numbers */
function writeNumbers(file, numbers) {
  fs.writeFileSync(file, new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength));
}

module.exports = { normalNumbers, repeated, writeNumbers };
