'use strict';
// What is measured: an entry an operation. Another operation is another entry, with its peers in peers/<name>.py.
const { ATTENTION } = require('./attention.cjs');
const { KDA } = require('./kda.cjs');

/**
 * @typedef {import('../../../lib/index').Tensor} Tensor
 *
 * @typedef {object} Case one shape of an operation
 * @property {string} label
 * @property {Record<string, number[]>} inputs the shape of each, bfloat16 normal numbers
 * @property {Record<string, any>} options of the call
 * @property {number} flops of a call, as the mathematics needs them
 * @property {boolean} profiled whether `--ncu` looks at it
 * @property {boolean} [thorough] not for `--quick`
 * @property {boolean} [memory] whether its memory is measured too
 * @property {Partial<Record<'tokens' | 'heads', number>>} [curves] where it lies on the curves over these
 *
 * @typedef {object} Operation
 * @property {string} peers the Python program with the other implementations
 * @property {string[]} peerNames those that it has where they are installed
 * @property {string} setting what its cases have in common, and what the names of variants say
 * @property {boolean} [tuned] whether its peers have to be tuned first
 * @property {RegExp} kernel the main kernel's name, for `--ncu`
 * @property {number} allowedError norm of the error over norm of a result
 * @property {Case[]} cases
 * @property {Record<string, Case['options']>} variants other ways of this package, by what their names add, and the options
 * that they add
 * @property {string[]} results the names of those that are checked; there may be more
 * @property {(inputs: Record<string, Tensor>, options: Case['options']) => () => Tensor[]} prepare what is timed
 * @property {(inputs: Record<string, Tensor>, options: Case['options']) => Promise<Block[]>} reference parts of the first
 * results in higher precision
 *
 * @typedef {object} Part of a result
 * @property {number} result its index
 * @property {boolean} flat whether the result is taken as one row
 * @property {number[][]} slices of the first dimensions, start and end
 *
 * @typedef {object} Block
 * @property {Part} part
 * @property {Float64Array} expected
 */

/** @type {Record<string, Operation>} */
const OPERATIONS = { ...ATTENTION, ...KDA };

module.exports = { OPERATIONS };
