'use strict';
// Runs every configuration of every kernel (test/gpu/scripts/sanitize.js) under the tools of compute-sanitizer, and fails on
// anything that they report, but for known false alarms. Usage: sanitize.cjs [tool ...]
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const { judge } = require('./alarms.cjs');

const TOOLS = ['memcheck', 'racecheck', 'synccheck', 'initcheck'];
const PROGRAM = path.resolve(__dirname, '../../test/gpu/scripts/sanitize.js');
const LIMIT_MILLISECONDS = 240_000;
/** The tool's status where it reported something. */
const REPORTED = 9;
const SHOWN_REPORTS = 20;

/** @param {string} tool @returns {{ ok: boolean, verdict: string, text: string }} */
function sanitize(tool) {
  const options = [
    '--tool',
    tool,
    '--error-exitcode',
    String(REPORTED),
    '--print-limit',
    '0',
    '--show-backtrace',
    'no',
  ];
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
  const { unexpected, falseAlarms, complete } = judge(tool, stdout);
  const ended = (status === 0 || status === REPORTED) && /^done$/m.test(stdout) && complete;
  const text = unexpected.slice(0, SHOWN_REPORTS).map((report) => `${report.join('\n  ')}\n`);
  if (!ended) text.push(stderr, `status ${status}, signal ${signal}, the last lines:\n`, stdout.slice(-2000), '\n');
  const known = falseAlarms > 0 ? `, ${falseAlarms} known false alarms` : '';
  return {
    ok: ended && unexpected.length === 0,
    verdict: `${unexpected.length} reports${known}${ended ? '' : ', and it did not come to its end'}`,
    text: text.join(''),
  };
}

const chosen = process.argv.slice(2);
const unknown = chosen.find((tool) => !TOOLS.includes(tool));
if (unknown !== undefined) {
  process.stderr.write(`sanitize: '${unknown}' is none of ${TOOLS.join(', ')}\n`);
  process.exit(2);
}
for (const tool of chosen.length > 0 ? chosen : TOOLS) {
  const start = performance.now();
  const { ok, verdict, text } = sanitize(tool);
  const seconds = ((performance.now() - start) / 1000).toFixed(0);
  process.stdout.write(`${text}${tool}: ${ok ? 'ok' : 'FAILED'}, ${verdict} (${seconds} s)\n`);
  if (!ok) process.exitCode = 1;
}
