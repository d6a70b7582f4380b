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
  train [options]              the training example; train --help says more
`;

const ROOT = path.resolve(__dirname, '../..');
const RECORD = path.join(ROOT, 'test/gpu/record.json');
/** Tests that fill the memory of the GPU: nothing else may run beside them. */
const ALONE = ['large', 'runtime', 'attention.backward.streams', 'kda.streams'];
const ALONE_PATTERN = `/(${ALONE.join('|').replaceAll('.', '\\.')})\\.test`;

/** @param {string[]} args of Node @param {string} [cwd] @returns {number} */
function node(args, cwd) {
  const { status, error } = spawnSync(process.execPath, args, { cwd, stdio: 'inherit' });
  if (error) throw error;
  return status ?? 1;
}

/** What Jest counted. @typedef {{ passed: number, failed: number, skipped: number }} Counts */

/** @param {Counts} counts @param {string[]} notRun files of tests @param {string | undefined} folder that gets a copy */
function writeRecord(counts, notRun, folder) {
  /** @type {typeof import('../../lib/index')} */
  const { systemInfo } = require(path.join(ROOT, 'dist/index.js'));
  const { cuda, nodeVersion } = systemInfo();
  const record = {
    nativeSources: hashNativeSources(ROOT),
    commit: commit(),
    date: new Date().toISOString(),
    device: cuda.devices.find(({ usable }) => usable)?.name ?? null,
    driver: driverVersion(),
    cuda: cuda.driverVersion ?? null,
    node: nodeVersion,
    ...counts,
    notRun,
  };
  fs.writeFileSync(RECORD, `${JSON.stringify(record, null, 2)}\n`);
  if (folder === undefined) return;
  fs.mkdirSync(folder, { recursive: true });
  fs.copyFileSync(RECORD, path.join(folder, 'record.json'));
}

/** Null where Jest did not come to an end. @param {string[]} options @returns {Counts | null} */
function jest(options) {
  const results = path.join(ROOT, 'results.json');
  fs.rmSync(results, { force: true });
  const program = path.join(ROOT, 'node_modules/jest/bin/jest.js');
  node(
    [program, '--config', path.join(__dirname, 'jest.config.cjs'), '--json', '--outputFile', results, ...options],
    ROOT,
  );
  if (!fs.existsSync(results)) return null;
  const found = JSON.parse(fs.readFileSync(results, 'utf8'));
  return {
    passed: found.numPassedTests,
    failed: found.numFailedTests + found.numRuntimeErrorTestSuites,
    skipped: found.numPendingTests,
  };
}

/** @param {string[]} args */
function test(args) {
  const { values, positionals: filters } = parseArgs({
    args,
    options: { out: { type: 'string' }, workers: { type: 'string', default: '1' } },
    allowPositionals: true,
  });
  if (filters.length > 0) return jest(['--maxWorkers', values.workers, ...filters])?.failed === 0 ? 0 : 1;
  const together = jest(['--maxWorkers', values.workers, '--testPathIgnorePatterns', ALONE_PATTERN]);
  if (together === null) return 1;
  writeRecord(together, ALONE, values.out); // a run that is ended leaves what it has
  const alone = jest(['--runInBand', '--testPathPatterns', ALONE_PATTERN]);
  if (alone === null) return 1;
  const counts = {
    passed: together.passed + alone.passed,
    failed: together.failed + alone.failed,
    skipped: together.skipped + alone.skipped,
  };
  console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
  writeRecord(counts, [], values.out);
  return counts.failed === 0 ? 0 : 1;
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
  train: (args) => node([path.join(ROOT, 'examples/train/main.js'), ...args]),
};

const [name, ...args] = process.argv.slice(2);
if (name in commands) process.exitCode = commands[name](args);
else {
  process.stderr.write(USAGE);
  process.exitCode = 2;
}
