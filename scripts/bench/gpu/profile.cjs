'use strict';
// Cycles and tensor-core use of the main kernel of a case, as Nsight Compute counts them. The clocks are left alone.
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const { ROOT } = require('./common.cjs');
const { OPERATIONS } = require('./operations.cjs');

/** @type {typeof import('../../../lib/cli/table')} */
const { formatTable } = require(path.join(ROOT, 'dist/cli/table.js'));

const METRICS = {
  'sm__cycles_elapsed.max': 'cycles',
  'sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active': 'tensor cores, %',
  'dram__throughput.avg.pct_of_peak_sustained_elapsed': 'memory, %',
};

/** @param {string} name of the operation @param {number} index of the case @returns {string[]} a value a metric */
function counters(name, index) {
  const { kernel } = OPERATIONS[name];
  const args = [
    ...['--clock-control', 'none', '--csv', '--metrics', Object.keys(METRICS).join(',')],
    ...['--kernel-name', `regex:${kernel.source}`, '--launch-skip', '2', '--launch-count', '1'],
    ...[process.execPath, path.join(__dirname, 'profiled.cjs'), name, String(index)],
  ];
  const { status, error, stdout, stderr } = spawnSync('ncu', args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (error) throw error;
  if (status !== 0) throw new Error(`ncu ended with status ${status}:\n${stdout}${stderr}`);
  return Object.keys(METRICS).map((metric) => {
    const line = stdout.split('\n').find((row) => row.includes(`"${metric}"`));
    return line?.match(/"([^"]*)"\s*$/)?.[1] ?? '?';
  });
}

/** @param {string} name of the operation @param {RegExp} [chosen] @returns {string} */
function profile(name, chosen) {
  const rows = OPERATIONS[name].cases.flatMap(({ label, profiled }, index) =>
    (chosen ? chosen.test(label) : profiled) ? [[label, ...counters(name, index)]] : [],
  );
  return `${formatTable(['case', ...Object.values(METRICS)], rows)}\n`;
}

module.exports = { profile };
