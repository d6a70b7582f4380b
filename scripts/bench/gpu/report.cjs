'use strict';
// A report of ./driver.cjs as tables and charts.
const path = require('node:path');
const { ROOT } = require('./common.cjs');
const { curves } = require('./curves.cjs');
const { OPERATIONS } = require('./operations.cjs');
const { isSavingPeer, ratio } = require('./ratios.cjs');

/** @type {typeof import('../../../lib/cli/table')} */
const { formatMarkdown, formatTable } = require(path.join(ROOT, 'dist/cli/table.js'));
/** @type {typeof import('../../../lib/cli/chart')} */
const { barChart } = require(path.join(ROOT, 'dist/cli/chart.js'));

/** @typedef {import('./driver.cjs').Report} Report */
/** @typedef {import('./driver.cjs').Row} Row */

/** A curve through fewer says nothing. */
const LEAST_POINTS = 4;

/** @param {Report} report */
function table({ rows }) {
  const peers = implementations({ rows }).filter((name) => name !== 'warpgrad');
  const header = ['case', 'warpgrad ms', 'spread', 'TFLOP/s', ...peers.flatMap((peer) => [`${peer} ms`, '×'])];
  const cells = rows
    .filter(({ implementation }) => implementation === 'warpgrad')
    .map((own) => [
      own.case,
      ...[own.ms.toFixed(3), `${(100 * own.spread).toFixed(1)} %`, own.tflops.toFixed(0)],
      ...peers.flatMap((peer) => {
        const row = rows.find((other) => other.case === own.case && other.implementation === peer);
        return row ? [row.ms.toFixed(3), ratio(rows, row).toFixed(2)] : ['', ''];
      }),
    ]);
  return { header, cells };
}

/** @param {{ rows: Row[] }} report */
const implementations = ({ rows }) => [...new Set(rows.map(({ implementation }) => implementation))];

/** By result, the largest error over the cases that all have, where there are any. @param {Report} report */
function errorTable(report) {
  const names = implementations(report);
  const all = report.rows.filter(
    (row) => report.rows.filter((other) => other.case === row.case).length === names.length,
  );
  const rows = all.length > 0 ? all : report.rows;
  const results = [...new Set(rows.flatMap(({ errors }) => Object.keys(errors)))];
  const cells = results.map((result) => [
    result,
    ...names.map((name) => {
      const errors = rows.filter((row) => row.implementation === name).map(({ errors }) => errors[result] ?? 0);
      return Math.max(...errors).toExponential(1);
    }),
  ]);
  return { header: ['largest error', ...names], cells };
}

/** What is empty in the table of times, and why. @param {Report} report */
function absenceLines({ operation, rows, absences = [] }) {
  const named = implementations({ rows });
  const missing = OPERATIONS[operation].peerNames.filter(
    (name) => !named.includes(name) && !absences.some(({ implementation }) => implementation === name),
  );
  // Without any peer there is another reason, among the failures.
  const uninstalled = named.every((name) => name.startsWith('warpgrad')) ? [] : missing;
  const reasons = new Set(absences.map(({ implementation, reason }) => `${implementation}: ${reason}`));
  const lines = Array.from(reasons, (text) => {
    const cases = absences.filter(({ implementation, reason }) => `${implementation}: ${reason}` === text);
    return `${text}: ${cases.map((item) => item.case).join('; ')}`;
  });
  return [...lines, ...uninstalled.map((name) => `${name}: not installed`)]
    .map((text) => `No time of ${text}.\n`)
    .join('');
}

/** @param {Report} report */
function about(report) {
  const { operation, device, driver, date, versions, commit, failures, ratios, callOverheadMicroseconds } = report;
  const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  const others = Object.entries(ratios).map(
    ([name, { geometricMean, minimum }]) => `${name} ${geometricMean.toFixed(3)} (${minimum.toFixed(3)})`,
  );
  const savings = Object.keys(ratios).some(isSavingPeer) ? ' (those of a "saving" peer over warpgrad saving)' : '';
  return (
    `${operation} in bfloat16 on ${device}, driver ${driver}; ${named.join(', ')}; commit ${commit}; ${date.slice(0, 10)}.\n` +
    `${OPERATIONS[operation].setting}\n` +
    `Times over warpgrad's${savings}, geometric mean over the cases and the least: ${others.join(', ') || 'no peers'}. ` +
    `A call takes ${callOverheadMicroseconds.toFixed(1)} µs in JavaScript.\n` +
    absenceLines(report) +
    failures.map((failure) => `Not measured: ${failure}.\n`).join('')
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

/** The rows of a case in a line. @param {Row[]} rows */
function line(rows) {
  const times = rows.map(({ implementation, ms }) => `${implementation} ${ms.toFixed(3)} ms`);
  return `${rows[0].case}: ${times.join(', ')}\n`;
}

/** @param {Report} report */
function terminal(report) {
  const [times, errors] = [table(report), errorTable(report)];
  return (
    `${about(report)}\n${formatTable(times.header, times.cells)}\n\n` +
    `${formatTable(errors.header, errors.cells)}\n${memoryLines(report)}`
  );
}

/** @param {string} lines */
const paragraphs = (lines) => lines.replaceAll('.\n', '.\n\n');

/** @param {Report} report */
function markdown(report) {
  const [times, errors] = [table(report), errorTable(report)];
  return (
    `${paragraphs(about(report))}${formatMarkdown(times.header, times.cells)}\n\n` +
    `${formatMarkdown(errors.header, errors.cells)}\n${paragraphs(memoryLines(report)).trimEnd()}\n`
  );
}

/** @param {Report} report */
const titleOf = ({ operation, device }) => `${operation}, bfloat16: ${device}`;

/** @param {Report} report */
function bars(report) {
  const colours = coloursOf(report);
  const all = report.rows.map(({ case: label, implementation, tflops }) => ({
    label: `${label}: ${implementation}`,
    value: tflops,
    note: `${tflops.toFixed(0)} TFLOP/s`,
    colour: colours[implementation],
  }));
  return barChart(`${titleOf(report)}, TFLOP/s`, all);
}

/** Blue is this package, grey are the peers. @param {Report} report */
function coloursOf(report) {
  const [own, others] = [
    ['#2f6db3', '#7fb2dd'],
    ['#5f6b78', '#9aa7b5', '#c9d1d9'],
  ];
  const next = (/** @type {string} */ name) => (name.startsWith('warpgrad') ? own : others).shift() ?? '#000000';
  return Object.fromEntries(implementations(report).map((name) => [name, next(name)]));
}

/** What the names of all these cases say, such as the heads of a curve over the tokens. @param {Row[]} rows */
function commonParts(rows) {
  const [first, ...others] = rows.map((row) => row.case.split(', '));
  return first.filter((part) => others.every((parts) => parts.includes(part)));
}

/**
 * The curve over the tokens or the heads, where enough was measured.
 * @param {Report} report @param {'tokens' | 'heads'} axis @returns {Promise<Record<string, string>>} by the end of its name
 */
async function curve(report, axis) {
  const points = report.rows.flatMap(({ implementation, ms, curves }) => {
    const at = curves?.[axis];
    return at === undefined ? [] : [{ implementation, at, ms }];
  });
  if (new Set(points.map(({ at }) => at)).size < LEAST_POINTS) return {};
  const title = [titleOf(report), ...commonParts(report.rows.filter(({ curves }) => curves?.[axis] !== undefined))];
  return { [`-${axis}.svg`]: await curves(title.join(', '), axis, points, coloursOf(report)) };
}

/** The files of a report, by the ends of their names. @param {Report} report @returns {Promise<Record<string, string>>} */
async function pages(report) {
  return {
    '.json': `${JSON.stringify(report, null, 2)}\n`,
    '.md': markdown(report),
    '.svg': bars(report),
    ...(await curve(report, 'tokens')),
    ...(await curve(report, 'heads')),
  };
}

module.exports = { about, implementations, line, pages, terminal };
