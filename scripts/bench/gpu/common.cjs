'use strict';
// What the operations and the driver have in common.
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../../..');

/**
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/reference/float64').Float64Tensor} Float64Tensor
 */

/** @param {Tensor} tensor @returns {Promise<Float64Tensor>} */
async function float64(tensor) {
  const values = await tensor.to({ dtype: 'float32' }).data();
  return { shape: tensor.shape, data: new Float64Array(values) };
}

module.exports = { float64, ROOT };
