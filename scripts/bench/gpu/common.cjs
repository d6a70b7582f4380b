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

/** @param {Tensor} tensor @param {number[][]} slices of its first dimensions, start and end */
function sliced(tensor, slices) {
  return slices.reduce((part, [start, end], dim) => part.slice(dim, start, end), tensor);
}

const sizeOf = (/** @type {readonly number[]} */ shape) => shape.reduce((product, extent) => product * extent, 1);

module.exports = { float64, ROOT, sizeOf, sliced };
