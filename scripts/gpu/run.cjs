'use strict';
// What run.sh of the GPU archive does.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { hashNativeSources } = require('../native-sources.cjs');
const { commit, driverVersion } = require('./machine.cjs');

const USAGE = `Usage: run.sh <command> [options]

  test [filter] [--workers N] [--out DIR]
                               the GPU suite, N files side by side (default 1); without a filter it leaves record.json,
                               in DIR too
  bench [options]              speed beside the peers that this machine has; bench --help says more
  sanitize [tool ...]          compute-sanitizer over every configuration of every kernel; all four tools by default
  check [options]              warpgrad doctor, and warpgrad check on the GPU
`;

const ROOT = path.resolve(__dirname, '../..');
const RECORD = path.join(ROOT, 'test/gpu/record.json');

/** @param {string[]} args of Node @param {string} [cwd] @returns {number} */
function node(args, cwd) {
  const { status, error } = spawnSync(process.execPath, args, { cwd, stdio: 'inherit' });
  if (error) throw error;
  return status ?? 1;
}

/** @param {string} results what Jest wrote */
function writeRecord(results) {
  /** @type {typeof import('../../lib/index')} */
  const { systemInfo } = require(path.join(ROOT, 'dist/index.js'));
  const { cuda, nodeVersion } = systemInfo();
  const { numPassedTests, numFailedTests, numRuntimeErrorTestSuites, numPendingTests } = JSON.parse(
    fs.readFileSync(results, 'utf8'),
  );
  const record = {
    nativeSources: hashNativeSources(ROOT),
    commit: commit(),
    date: new Date().toISOString(),
    device: cuda.devices.find(({ usable }) => usable)?.name ?? null,
    driver: driverVersion(),
    cuda: cuda.driverVersion ?? null,
    node: nodeVersion,
    passed: numPassedTests,
    failed: numFailedTests + numRuntimeErrorTestSuites,
    skipped: numPendingTests,
  };
  fs.writeFileSync(RECORD, `${JSON.stringify(record, null, 2)}\n`);
}

/** @param {string[]} args */
function test(args) {
  const { values, positionals: filters } = parseArgs({
    args,
    options: { out: { type: 'string' }, workers: { type: 'string', default: '1' } },
    allowPositionals: true,
  });
  const results = path.join(ROOT, 'results.json');
  const jest = path.join(ROOT, 'node_modules/jest/bin/jest.js');
  const config = path.join(__dirname, 'jest.config.cjs');
  fs.rmSync(results, { force: true });
  const options = ['--config', config, '--maxWorkers', values.workers, '--json', '--outputFile', results];
  const status = node([jest, ...options, ...filters], ROOT);
  if (filters.length === 0 && fs.existsSync(results)) {
    writeRecord(results);
    if (values.out) {
      fs.mkdirSync(values.out, { recursive: true });
      fs.copyFileSync(RECORD, path.join(values.out, 'record.json'));
    }
  }
  return status;
}

/** @param {string[]} args */
function check(args) {
  const program = path.join(ROOT, 'dist/cli/main.js');
  return node([program, 'doctor']) || node([program, 'check', '--device', 'cuda', ...args]);
}

/** @type {Record<string, (args: string[]) => number>} */
const commands = {
  test,
  bench: (args) => node([path.join(ROOT, 'scripts/bench/gpu.cjs'), ...args]),
  sanitize: (args) => node([path.join(__dirname, 'sanitize.cjs'), ...args]),
  check,
};

const [name, ...args] = process.argv.slice(2);
if (name in commands) process.exitCode = commands[name](args);
else {
  process.stderr.write(USAGE);
  process.exitCode = 2;
}
