'use strict';
// Runs every configuration of every kernel (test/gpu/scripts/sanitize.js) under the tools of compute-sanitizer, and fails on
// anything that they report. Usage: sanitize.cjs [tool ...]
const { spawnSync } = require('node:child_process');
const path = require('node:path');

const TOOLS = ['memcheck', 'racecheck', 'synccheck', 'initcheck'];
const PROGRAM = path.resolve(__dirname, '../../test/gpu/scripts/sanitize.js');
const LIMIT_MILLISECONDS = 180_000;
const CLEAN = /^========= (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\))$/m;

/** @param {string} tool @returns {{ ok: boolean, text: string }} */
function sanitize(tool) {
  const options = ['--tool', tool, '--error-exitcode', '9', '--print-limit', '20', '--show-backtrace', 'no'];
  const { status, signal, error, stdout, stderr } = spawnSync(
    'compute-sanitizer',
    [...options, process.execPath, PROGRAM, tool],
    {
      encoding: 'utf8',
      maxBuffer: 2 ** 28,
      timeout: LIMIT_MILLISECONDS,
      killSignal: 'SIGKILL',
    },
  );
  if (error && stdout === null) throw error;
  // The tool's own verdict is asked for: a program that it did not watch would look clean too.
  const ok = status === 0 && stdout.includes('done\n') && CLEAN.test(stdout);
  return { ok, text: ok ? '' : `${stdout}${stderr}status ${status}, signal ${signal}\n` };
}

const chosen = process.argv.slice(2);
const unknown = chosen.find((tool) => !TOOLS.includes(tool));
if (unknown !== undefined) {
  process.stderr.write(`sanitize: '${unknown}' is none of ${TOOLS.join(', ')}\n`);
  process.exit(2);
}
for (const tool of chosen.length > 0 ? chosen : TOOLS) {
  const start = performance.now();
  const { ok, text } = sanitize(tool);
  process.stdout.write(
    `${text}${tool}: ${ok ? 'nothing found' : 'FAILED'} (${((performance.now() - start) / 1000).toFixed(0)} s)\n`,
  );
  if (!ok) process.exitCode = 1;
}
