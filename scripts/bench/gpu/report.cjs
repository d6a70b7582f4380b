'use strict';
// A report of ./driver.cjs as a table and as a chart.
const path = require('node:path');
const { ROOT } = require('./common.cjs');

/** @type {typeof import('../../../lib/cli/table')} */
const { formatMarkdown, formatTable } = require(path.join(ROOT, 'dist/cli/table.js'));
/** @type {typeof import('../../../lib/cli/chart')} */
const { barChart } = require(path.join(ROOT, 'dist/cli/chart.js'));

/** @typedef {import('./driver.cjs').Report} Report */

/** @param {Report} report */
function table({ rows }) {
  const peers = [...new Set(rows.map(({ implementation }) => implementation))].filter((name) => name !== 'warpgrad');
  const header = ['case', 'warpgrad ms', 'spread', 'TFLOP/s', ...peers.flatMap((peer) => [`${peer} ms`, '×'])];
  const cells = rows
    .filter(({ implementation }) => implementation === 'warpgrad')
    .map((own) => [
      own.case,
      ...[own.ms.toFixed(3), `${(100 * own.spread).toFixed(1)} %`, own.tflops.toFixed(0)],
      ...peers.flatMap((peer) => {
        const row = rows.find((other) => other.case === own.case && other.implementation === peer);
        return row ? [row.ms.toFixed(3), (row.ms / own.ms).toFixed(2)] : ['', ''];
      }),
    ]);
  return { header, cells };
}

/** @param {Report} report */
function about({ operation, device, driver, date, versions, commit, ratios, callOverheadMicroseconds }) {
  const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  const others = Object.entries(ratios).map(
    ([name, { geometricMean, minimum }]) => `${name} ${geometricMean.toFixed(3)} (${minimum.toFixed(3)})`,
  );
  return (
    `${operation} in bfloat16 on ${device}, driver ${driver}; ${named.join(', ')}; commit ${commit}; ${date.slice(0, 10)}.\n` +
    `Times over warpgrad's, geometric mean over the cases and the least: ${others.join(', ') || 'no peers'}. ` +
    `A call takes ${callOverheadMicroseconds.toFixed(1)} µs in JavaScript.\n`
  );
}

/** What calls take of the memory, in words. @param {Report} report */
function memoryLines({ memory }) {
  const size = (/** @type {number} */ bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  const lines = memory.map(({ case: label, implementation, peak, retained }) => {
    const kept = retained === undefined ? '' : `; it keeps ${size(retained)} from the forward for it`;
    return `${label}, ${implementation}: a call takes at most ${size(peak)} besides its inputs${kept}.\n`;
  });
  return lines.length > 0 ? `\n${lines.join('')}` : '';
}

/** @param {Report} report */
function terminal(report) {
  const { header, cells } = table(report);
  return `${about(report)}\n${formatTable(header, cells)}\n${memoryLines(report)}`;
}

/** @param {Report} report */
function markdown(report) {
  const { header, cells } = table(report);
  return `${about(report)}\n${formatMarkdown(header, cells)}\n${memoryLines(report).replaceAll('.\n', '.\n\n').trimEnd()}\n`;
}

/** @param {Report} report */
function chart({ operation, device, rows }) {
  const bars = rows.map(({ case: label, implementation, tflops }) => ({
    label: `${label}: ${implementation}`,
    value: tflops,
    note: `${tflops.toFixed(0)} TFLOP/s`,
    colour: implementation.startsWith('warpgrad') ? '#2f6db3' : '#9aa7b5', // the peers in grey
  }));
  return barChart(`${operation}, bfloat16, TFLOP/s: ${device}`, bars);
}

module.exports = { chart, markdown, terminal };
