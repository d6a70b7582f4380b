#!/usr/bin/env node
'use strict';
// Speed on a GPU beside the peers that the machine has. How it measures: gpu/driver.cjs.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { measure } = require('./gpu/driver.cjs');
const { OPERATIONS } = require('./gpu/operations.cjs');
const { PeerCache } = require('./gpu/peercache.cjs');
const { profile } = require('./gpu/profile.cjs');
const { line, pages, terminal } = require('./gpu/report.cjs');

const NAMES = Object.keys(OPERATIONS);
const USAGE = `Usage: gpu.cjs [--op NAME]... [--cases PATTERN] [--quick] [--no-peers] [--peer-cache DIR] [--ncu] [--json] [--out DIR]

Measures an operation beside its public implementations, on one GPU in one run. Results are checked first.

  --op NAME         ${NAMES.join(' or ')} (default: all)
  --cases PATTERN   only cases whose name the regular expression finds
  --quick           fewer rounds, and of the curves only what --cases finds
  --no-peers        this package alone: needs no Python
  --peer-cache DIR  where flash-linear-attention keeps what it compiles and tunes, at first for minutes
                    (default: warpgrad-peers in the system's temporary folder)
  --ncu             instead: cycles and tensor-core use of the main kernels, through Nsight Compute
  --json            the results as JSON
  --out DIR         also writes the results there, case by case, as JSON, as Markdown tables and as SVG charts
`;

/** @typedef {import('./gpu/driver.cjs').Report} Report */
/** @typedef {import('./gpu/driver.cjs').Row} Row */

/** @param {string} folder @param {Report} report */
async function write(folder, report) {
  for (const [suffix, content] of Object.entries(await pages(report))) {
    fs.writeFileSync(path.join(folder, `${report.operation}-gpu${suffix}`), content);
  }
}

async function main() {
  const { values } = parseArgs({
    options: {
      ...{ op: { type: 'string', multiple: true }, cases: { type: 'string' }, out: { type: 'string' } },
      ...{ quick: { type: 'boolean', default: false }, json: { type: 'boolean', default: false } },
      ...{ 'no-peers': { type: 'boolean', default: false }, ncu: { type: 'boolean', default: false } },
      'peer-cache': { type: 'string', default: path.join(os.tmpdir(), 'warpgrad-peers') },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) return process.stdout.write(USAGE);
  const chosen = values.op ?? NAMES;
  const unknown = chosen.find((name) => !NAMES.includes(name));
  if (unknown !== undefined) throw new Error(`--op must be ${NAMES.join(' or ')}, got '${unknown}'`);
  const cases = values.cases === undefined ? undefined : new RegExp(values.cases);
  if (values.out !== undefined) fs.mkdirSync(values.out, { recursive: true });
  if (values.ncu) return chosen.forEach((name) => process.stdout.write(profile(name, cases)));
  const peers = values['no-peers'] ? null : new PeerCache(values['peer-cache']);
  if (chosen.some((name) => OPERATIONS[name].tuned)) peers?.start(OPERATIONS['kda-step'].cases);
  try {
    for (const name of chosen) {
      // Untuned ones would take minutes.
      const tuned = !OPERATIONS[name].tuned || (await peers?.ready()) !== false;
      if (!tuned) process.stderr.write(`${name} is measured alone: its peers could not be tuned; why is above\n`);
      const onCase = async (/** @type {Report} */ report, /** @type {Row[]} */ rows) => {
        if (!process.stderr.isTTY && rows.length > 0) process.stderr.write(line(rows));
        if (values.out !== undefined) await write(values.out, report);
      };
      const report = await measure(name, { quick: values.quick, peers: tuned ? peers : null, cases, onCase });
      process.stdout.write(values.json ? `${JSON.stringify(report, null, 2)}\n` : terminal(report));
      if (report.failures.length > 0 || !tuned) process.exitCode = 1;
    }
  } finally {
    peers?.abandon();
  }
}

main().catch((error) => {
  process.stderr.write(`${/** @type {Error} */ (error).message}\n`);
  process.exitCode = 1;
});
