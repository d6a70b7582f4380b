#!/usr/bin/env node
'use strict';
// Puts what the benchmarks wrote into docs/benchmarks, and a summary into the pages that have a place for it.
// Usage: docs.cjs FOLDER, the --out of gpu.cjs
const fs = require('node:fs');
const path = require('node:path');
const { ROOT } = require('./common.cjs');
const { OPERATIONS } = require('./operations.cjs');
const { pages } = require('./report.cjs');

/** @type {typeof import('../../../lib/cli/table')} */
const { formatMarkdown } = require(path.join(ROOT, 'dist/cli/table.js'));

/** @typedef {import('./driver.cjs').Report} Report */

const BENCHMARKS = path.join(ROOT, 'docs/benchmarks');
const PAGES = [path.join(ROOT, 'README.md'), path.join(BENCHMARKS, 'README.md')];
const [BEGIN, END] = ['<!-- benchmarks on a GPU -->', '<!-- end -->'];

/** `NVIDIA H200` is `h200`. @param {Report} report */
const slug = ({ device }) => device.split(' ').slice(1).join('-').toLowerCase();

/** @returns {Report[]} all of docs/benchmarks, in the order of the operations */
function reports() {
  const files = fs.readdirSync(BENCHMARKS).filter((file) => file.endsWith('.json'));
  return Object.keys(OPERATIONS).flatMap((name) =>
    files
      .filter((file) => file.startsWith(`${name}-`))
      .map((file) => JSON.parse(fs.readFileSync(path.join(BENCHMARKS, file), 'utf8'))),
  );
}

/** How the peers compare, as a table whose rows link to their pages. @param {string} page that it is for */
function summary(page) {
  const rows = reports().flatMap((report) => {
    const link = path.relative(path.dirname(page), path.join(BENCHMARKS, `${report.operation}-${slug(report)}.md`));
    const named = `[${report.operation}](${link})`;
    const peers = Object.entries(report.ratios).filter(([name]) => !name.startsWith('warpgrad'));
    return peers.map(([name, { geometricMean, minimum }]) => {
      const cases = report.rows.filter(({ implementation }) => implementation === name).length;
      return [named, report.device, name, String(cases), geometricMean.toFixed(2), minimum.toFixed(2)];
    });
  });
  return formatMarkdown(['operation', 'GPU', 'beside', 'cases', 'its time over ours: mean', 'least'], rows);
}

async function main() {
  const folder = process.argv[2];
  if (folder === undefined) throw new Error('Usage: docs.cjs FOLDER');
  for (const file of fs.readdirSync(folder).filter((name) => name.endsWith('-gpu.json'))) {
    const report = /** @type {Report} */ (JSON.parse(fs.readFileSync(path.join(folder, file), 'utf8')));
    const base = `${report.operation}-${slug(report)}`;
    const { '.md': text, ...others } = await pages(report);
    const charts = Object.keys(others).filter((suffix) => suffix.endsWith('.svg'));
    const page = [text, ...charts.map((suffix) => `![${base}](${base}${suffix})\n`)].join('\n');
    for (const [suffix, content] of Object.entries({ ...others, '.md': page })) {
      fs.writeFileSync(path.join(BENCHMARKS, `${base}${suffix}`), content);
    }
  }
  for (const page of PAGES) {
    const [before, rest] = fs.readFileSync(page, 'utf8').split(`${BEGIN}\n`);
    if (rest === undefined) throw new Error(`${page} has no line ${BEGIN}`);
    const after = rest.slice(rest.indexOf(END));
    fs.writeFileSync(page, `${before}${BEGIN}\n\n${summary(page)}\n\n${after}`);
  }
}

main().catch((error) => {
  process.stderr.write(`${/** @type {Error} */ (error).message}\n`);
  process.exitCode = 1;
});
