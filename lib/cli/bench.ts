import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { systemInfo, type Device } from '../index';
import { resolveDevice } from '../device';
import { PACKAGE_ROOT } from '../native';
import { BENCH_DIMS, makeRun, type BenchRun, type Operation } from './benchCases';
import { measureGpu } from './benchGpu';
import { gpuPages } from './benchGpuReport';
import { expectRight } from './benchVerify';
import { measureOverhead, measureRates, PASSES, type Effort } from './benchRun';
import { cpuPages, type BenchReport } from './benchReport';
import { type Command } from './command';
import { parseChoice, parseDevice, parseOptions, UsageError } from './options';
import { type Pages } from './pages';
import { type FloatDType } from './precision';

const USAGE = `Usage: warpgrad bench [--device D] [--op attention|kda] [--quick] [--json] [--out DIR]

Measures the rate of both operations, forward and backward. On the CPU also that of the matrix micro-kernel, the most that
they could reach; with one thread and with all. Results are checked first: nothing is reported of an operation that is wrong.

  --device D    cpu, cuda, cuda:N or auto (default: auto)
  --op NAME     attention or kda (default: both)
  --quick       shorter sequences and fewer rounds
  --json        the results as JSON
  --out DIR     also writes the results there, as JSON, as a Markdown table and as an SVG chart
`;

const OPERATIONS = ['attention', 'kda'] as const;
const DTYPES: readonly FloatDType[] = ['float32', 'bfloat16'];
const FULL: Effort = { rounds: 9, leastMilliseconds: 100 };
const QUICK: Effort = { rounds: 3, leastMilliseconds: 0 };

/** The commit of the checkout that this runs in, or null where the package is installed. */
function checkoutCommit(): string | null {
  if (!fs.existsSync(path.join(PACKAGE_ROOT, '.git'))) return null;
  try {
    return execFileSync('git', ['rev-parse', 'HEAD'], { cwd: PACKAGE_ROOT, encoding: 'utf8', stdio: 'pipe' }).trim();
  } catch {
    return null;
  }
}

/** Makes a folder to write into, with those around it. @throws an error with the system's code where that can't be done */
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
    const { code, message } = error as NodeJS.ErrnoException;
    throw Object.assign(new Error(`--out: can't write to the folder ${folder}: ${message}`), { code });
  }
}

async function measureCpu(operations: readonly Operation[], quick: boolean): Promise<Omit<BenchReport, 'operation'>> {
  const effort = quick ? QUICK : FULL;
  const [tokens, heads] = [quick ? 512 : 2048, 8];
  const runs: BenchRun[] = operations.flatMap((operation) =>
    BENCH_DIMS[operation].flatMap((dim) =>
      DTYPES.map((dtype) => makeRun(operation, { tokens, heads, dim }, dtype, 'cpu')),
    ),
  );
  try {
    const timed = runs.map((run) => ({ run, passes: PASSES }));
    await expectRight(operations, timed, DTYPES, 'cpu');
    const rows = await measureRates(runs, effort);
    const calls = operations.map((operation) => ({ operation, passes: PASSES }));
    const callOverhead = await measureOverhead(calls, 'float32', 'cpu', effort);
    const { version, nodeVersion, platform, cpu } = systemInfo();
    return {
      device: 'cpu',
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

/** The report and how it reads. */
async function measure(
  operation: Operation | undefined,
  device: Device,
  quick: boolean,
): Promise<{ report: { operation: string; device: string }; pages: Pages }> {
  const operations = operation ? [operation] : OPERATIONS;
  const named = { operation: operation ?? 'all' };
  if (device === 'cpu') {
    const report = { ...named, ...(await measureCpu(operations, quick)) };
    return { report, pages: cpuPages(report) };
  }
  const report = { ...named, ...(await measureGpu(operations, device, quick)), commit: checkoutCommit() };
  return { report, pages: gpuPages(report) };
}

function write(folder: string, { operation, device }: { operation: string; device: string }, files: Pages): void {
  const name = `${operation}-${device.replace(':', '-')}`;
  for (const [extension, text] of Object.entries({ json: files.json, md: files.markdown, svg: files.chart })) {
    fs.writeFileSync(path.join(folder, `${name}.${extension}`), text);
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
    if (options.out === '') throw new UsageError("--out must be a folder, got ''");
    if (options.out !== undefined) makeFolder(path.resolve(options.out));
    const device = resolveDevice('--device', parseDevice(options.device));
    const { report, pages } = await measure(operation, device, options.quick);
    if (options.out !== undefined) write(options.out, report, pages);
    process.stdout.write(options.json ? pages.json : pages.terminal);
    return 0;
  },
};
