import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { systemInfo, WarpgradError, WarpgradRangeError, type Device } from '../index';
import { resolveDevice } from '../device';
import { PACKAGE_ROOT } from '../native';
import { rateRuns, type BenchRun, type Operation } from './benchCases';
import { measureOverhead, measureRates, type Effort } from './benchRun';
import { chart, markdown, terminal, type BenchReport } from './benchReport';
import { runChecks } from './check';
import { type Command } from './command';
import { parseChoice, parseDevice, parseOptions } from './options';
import { type FloatDType } from './precision';

const USAGE = `Usage: warpgrad bench [--device D] [--op attention|kda] [--quick] [--json] [--out DIR]

Measures the rate of both operations, forward and backward, and of the matrix micro-kernel, the most that they could
reach; with one thread and with all. Results are checked first: nothing is reported of an operation that is wrong.

  --device D    cpu or auto (default: auto)
  --op NAME     attention or kda (default: both)
  --quick       shorter sequences and fewer rounds
  --json        the results as JSON
  --out DIR     also writes the results there, as JSON, as a Markdown table and as an SVG chart
`;

const OPERATIONS = ['attention', 'kda'] as const;
const DTYPES: readonly FloatDType[] = ['float32', 'bfloat16'];
const FULL: Effort = { rounds: 9, leastMilliseconds: 100 };
const QUICK: Effort = { rounds: 3, leastMilliseconds: 0 };

function benchDevice(value: string): Device {
  const device = resolveDevice('bench', parseDevice(value));
  if (device === 'cpu') return device;
  throw new WarpgradError('ERR_WARPGRAD_UNSUPPORTED', `there is no benchmark for ${device} yet`);
}

/** The commit of the checkout that this runs in, or null where the package is installed. */
function checkoutCommit(): string | null {
  if (!fs.existsSync(path.join(PACKAGE_ROOT, '.git'))) return null;
  try {
    return execFileSync('git', ['rev-parse', 'HEAD'], { cwd: PACKAGE_ROOT, encoding: 'utf8', stdio: 'pipe' }).trim();
  } catch {
    return null;
  }
}

/** Throws unless every result that is about to be timed is right: the options on small shapes, and the shapes themselves. */
async function verify(operations: readonly Operation[], runs: readonly BenchRun[], device: Device): Promise<void> {
  const small = await runChecks(
    device,
    ({ operation }, dtype) => operations.includes(operation) && DTYPES.includes(dtype),
  );
  const large = [];
  for (const run of runs) large.push(...(await run.verify()).map((verdict) => ({ ...verdict, case: run.label })));
  const wrong = [...small, ...large].filter(({ ok }) => !ok);
  if (wrong.length === 0) return;
  const [first] = wrong;
  throw new WarpgradError(
    'ERR_WARPGRAD_INTERNAL',
    `${wrong.length} results are wrong, so nothing was measured; the first: ${first.what} of ${first.case}, ` +
      `error ${first.error.toExponential(1)}, allowed ${first.allowed.toExponential(1)}. See warpgrad check`,
  );
}

/** Makes a folder to write into, with those around it. @throws WarpgradRangeError where that can't be done */
function makeFolder(folder: string): void {
  // Level by level: with `recursive`, Node tries for ever in a folder like /proc.
  const make = (level: string): void => {
    if (fs.existsSync(level)) return;
    make(path.dirname(level));
    fs.mkdirSync(level);
  };
  try {
    make(folder);
    fs.rmdirSync(fs.mkdtempSync(path.join(folder, '.warpgrad-')));
  } catch (error) {
    throw new WarpgradRangeError(`--out: can't write to the folder ${folder}: ${(error as Error).message}`);
  }
}

function write(folder: string, report: BenchReport): void {
  const file = (extension: string) => path.join(folder, `${report.operation}-${report.device}.${extension}`);
  fs.writeFileSync(file('json'), `${JSON.stringify(report, null, 2)}\n`);
  fs.writeFileSync(file('md'), markdown(report));
  fs.writeFileSync(file('svg'), chart(report));
}

async function measure(operation: Operation | undefined, device: Device, quick: boolean): Promise<BenchReport> {
  const operations = operation ? [operation] : OPERATIONS;
  const effort = quick ? QUICK : FULL;
  const runs = rateRuns(operations, DTYPES, device, quick);
  try {
    await verify(operations, runs, device);
    const rows = await measureRates(runs, effort);
    const callOverhead = await measureOverhead(operations, device, effort);
    const { version, nodeVersion, platform, cpu } = systemInfo();
    return {
      operation: operation ?? 'all',
      device,
      processor: cpu.model,
      instructionSet: cpu.instructionSet,
      date: new Date().toISOString(),
      versions: { warpgrad: version, node: nodeVersion, platform },
      commit: checkoutCommit(),
      rows,
      callOverhead,
    };
  } finally {
    for (const run of runs) run.dispose();
  }
}

export const command: Command = {
  usage: USAGE,
  async run(args) {
    const options = parseOptions(args, {
      device: { type: 'string', default: 'auto' },
      op: { type: 'string' },
      quick: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      out: { type: 'string' },
    });
    const operation = options.op === undefined ? undefined : parseChoice('--op', options.op, OPERATIONS);
    // Before anything is measured: minutes of results must not be lost to a folder that can't be made.
    if (options.out !== undefined) makeFolder(path.resolve(options.out));
    const report = await measure(operation, benchDevice(options.device), options.quick);
    if (options.out !== undefined) write(options.out, report);
    process.stdout.write(options.json ? `${JSON.stringify(report, null, 2)}\n` : terminal(report));
    return 0;
  },
};
