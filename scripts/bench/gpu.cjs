#!/usr/bin/env node
'use strict';
// Speed on a GPU beside the peers that the machine has. How it measures: gpu/driver.cjs.
const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { measure } = require('./gpu/driver.cjs');
const { OPERATIONS } = require('./gpu/operations.cjs');
const { profile } = require('./gpu/profile.cjs');
const { chart, markdown, terminal } = require('./gpu/report.cjs');

const NAMES = Object.keys(OPERATIONS);
const USAGE = `Usage: gpu.cjs [--op NAME] [--cases PATTERN] [--quick] [--no-peers] [--ncu] [--json] [--out DIR]

Measures an operation beside its public implementations, on one GPU in one run. Results are checked first.

  --op NAME         ${NAMES.join(' or ')} (default: all)
  --cases PATTERN   only cases whose name the regular expression finds
  --quick           fewer rounds, and no curves
  --no-peers        this package alone: needs no Python
  --ncu             instead: cycles and tensor-core use of the main kernels, through Nsight Compute
  --json            the results as JSON
  --out DIR         also writes the results there, as JSON, as a Markdown table and as an SVG chart
`;

async function main() {
  const { values } = parseArgs({
    options: {
      ...{ op: { type: 'string' }, cases: { type: 'string' }, out: { type: 'string' } },
      ...{ quick: { type: 'boolean', default: false }, json: { type: 'boolean', default: false } },
      ...{ 'no-peers': { type: 'boolean', default: false }, ncu: { type: 'boolean', default: false } },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) return process.stdout.write(USAGE);
  const chosen = values.op === undefined ? NAMES : NAMES.filter((name) => name === values.op);
  if (chosen.length === 0) throw new Error(`--op must be ${NAMES.join(' or ')}, got '${values.op}'`);
  const cases = values.cases === undefined ? undefined : new RegExp(values.cases);
  if (values.out !== undefined) fs.mkdirSync(values.out, { recursive: true });
  for (const name of chosen) {
    if (values.ncu) {
      process.stdout.write(profile(name, cases));
      continue;
    }
    const report = await measure(name, { quick: values.quick, peers: !values['no-peers'], cases });
    const json = `${JSON.stringify(report, null, 2)}\n`;
    process.stdout.write(values.json ? json : terminal(report));
    if (values.out === undefined) continue;
    const file = (/** @type {string} */ extension) => path.join(values.out ?? '', `${name}-gpu.${extension}`);
    fs.writeFileSync(file('json'), json);
    fs.writeFileSync(file('md'), markdown(report));
    fs.writeFileSync(file('svg'), chart(report));
  }
}

main().catch((error) => {
  process.stderr.write(`${/** @type {Error} */ (error).message}\n`);
  process.exitCode = 1;
});
