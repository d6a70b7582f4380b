'use strict';
// How the others compare with this package.

/** @typedef {import('./driver.cjs').Row} Row */

/** Whether it is the variant of a peer that is compared with the one of this package. @param {string} implementation */
const isSavingPeer = (implementation) => /^(?!warpgrad).* saving$/.test(implementation);

/**
 * The time of a row over this package's in the same case; over that of the variant of the same name, if it is a peer's.
 * @param {Row[]} rows @param {Row} row
 */
function ratio(rows, row) {
  const name = isSavingPeer(row.implementation) ? 'warpgrad saving' : 'warpgrad';
  const own = rows.find((other) => other.case === row.case && other.implementation === name);
  return own ? row.ms / own.ms : NaN;
}

/**
 * By name of the others, over the cases.
 * @param {Row[]} rows @returns {Record<string, { geometricMean: number, minimum: number }>}
 */
function ratiosOf(rows) {
  const names = [...new Set(rows.map(({ implementation }) => implementation))].filter((name) => name !== 'warpgrad');
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const summaries = names.map((name) => {
    const values = rows.filter(({ implementation }) => implementation === name).map((row) => ratio(rows, row));
    return [name, { geometricMean: Math.exp(mean(values.map(Math.log))), minimum: Math.min(...values) }];
  });
  return Object.fromEntries(summaries);
}

module.exports = { isSavingPeer, ratio, ratiosOf };
