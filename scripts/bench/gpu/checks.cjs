'use strict';
// How far results are from what they should be.
const { sizeOf } = require('./common.cjs');

/** @typedef {import('./operations.cjs').Part} Part */

/** So many evenly spaced windows of so many elements of each result are compared with the peers'. */
const WINDOWS = 64;
const WINDOW_SIZE = 2 ** 11;

/** @param {string[]} results the names @param {number[][]} shapes @returns {Part[]} */
function windows(results, shapes) {
  return results.flatMap((_, result) => {
    const size = sizeOf(shapes[result]);
    const count = Math.min(WINDOWS, Math.ceil(size / WINDOW_SIZE));
    return Array.from({ length: count }, (_, n) => {
      const start = Math.floor((n * size) / count);
      return { result, flat: true, slices: [[start, Math.min(start + WINDOW_SIZE, size)]] };
    });
  });
}

/**
 * By result, the norm of the difference over the norm, of all its parts together.
 * @param {string[]} results the names @param {Part[]} parts @param {Float32Array[]} actual
 * @param {ArrayLike<number>[]} expected @returns {Record<string, number>}
 */
function differences(results, parts, actual, expected) {
  const sums = results.map(() => ({ errors: 0, squares: 0 }));
  for (const [n, { result }] of parts.entries()) {
    if (actual[n].length !== expected[n].length) sums[result].errors = Infinity;
    for (let at = 0; at < expected[n].length; at++) {
      sums[result].errors += (actual[n][at] - expected[n][at]) ** 2;
      sums[result].squares += expected[n][at] ** 2;
    }
  }
  const checked = sums.flatMap(({ errors, squares }, result) =>
    parts.some((part) => part.result === result) ? [[results[result], Math.sqrt(errors / (squares || 1))]] : [],
  );
  return Object.fromEntries(checked);
}

/** NaN if one is. @param {Record<string, number>} errors */
const worst = (errors) => Math.max(...Object.values(errors));

module.exports = { differences, windows, worst };
