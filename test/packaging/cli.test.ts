import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { judge, type Reference } from '../../lib/cli/precision';
import { Random } from '../../lib/cli/random';
import { formatMarkdown, formatTable } from '../../lib/cli/table';
import { ROOT } from './install';

const PROGRAM = path.join(ROOT, 'dist/cli/main.js');

function warpgrad(args: string[], env: NodeJS.ProcessEnv = {}) {
  return spawnSync(process.execPath, [PROGRAM, ...args], { encoding: 'utf8', env: { ...process.env, ...env } });
}

/** The output of a command that succeeds with an empty error stream. */
function json(args: string[], env: NodeJS.ProcessEnv = {}): any {
  const { status, stdout, stderr } = warpgrad([...args, '--json'], env);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return JSON.parse(stdout);
}

describe('command line', () => {
  test.each([
    [[], 'warpgrad: a command is missing'],
    [['trian'], "warpgrad: unknown command 'trian'"],
    [['--jsno'], "warpgrad: unknown option '--jsno'"],
    [['doctor', '--jsno'], "warpgrad doctor: unknown option '--jsno'"],
    [['check', '--device', 'tpu'], "warpgrad check: --device must be auto, cpu, cuda or cuda:N, got 'tpu'"],
    [['check', '--device=cuda:99999'], "warpgrad check: --device must be auto, cpu, cuda or cuda:N, got 'cuda:99999'"],
    [['check', '--device', '--json'], "warpgrad check: option '--device' argument is ambiguous"],
    [['check', 'everything'], "warpgrad check: unexpected argument 'everything'"],
    [['bench', '--op=conv'], "warpgrad bench: --op must be attention or kda, got 'conv'"],
    [['bench', '--out'], "warpgrad bench: option '--out <value>' argument missing"],
    [['bench', '--out='], "warpgrad bench: --out must be a folder, got ''"],
    [['bench', '--quick=yes'], "warpgrad bench: option '--quick' does not take an argument"],
  ])('%j is not understood', (args, message) => {
    const { status, stdout, stderr } = warpgrad(args);
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr.split('\n')[0]).toBe(message);
    expect(stderr).toContain('Usage: warpgrad');
  });

  test.each(['doctor', 'check', 'bench'])('%s --help, -h', (name) => {
    for (const help of ['--help', '-h']) {
      const { status, stdout, stderr } = warpgrad([name, help]);
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      expect(stdout).toContain(`Usage: warpgrad ${name}`);
      expect(warpgrad([help]).stdout).toContain(name);
    }
  });

  test('--version', () => {
    const { version } = JSON.parse(fs.readFileSync(path.join(ROOT, 'package.json'), 'utf8')) as { version: string };
    expect(warpgrad(['--version']).stdout).toBe(`${version}\n`);
  });

  test('an output that takes nothing is a condition, not a crash', () => {
    const full = fs.openSync('/dev/full', 'w');
    const { status, stderr } = spawnSync(process.execPath, [PROGRAM, 'doctor'], {
      encoding: 'utf8',
      stdio: ['ignore', full, 'pipe'],
    });
    fs.closeSync(full);
    expect({ status, stderr }).toEqual({
      status: 1,
      stderr: "warpgrad: the output can't be written: ENOSPC: no space left on device, write\n",
    });
  });

  test('a GPU that is not there is a condition, not a crash', () => {
    const { status, stdout, stderr } = warpgrad(['check', '--device', 'cuda'], { WARPGRAD_DISABLE_CUDA: '1' });
    expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
    expect(stderr).toMatch(/^warpgrad check: .*WARPGRAD_DISABLE_CUDA=1.* \(ERR_WARPGRAD_NO_DEVICE\)\n$/);
  });
});

describe('doctor', () => {
  test('says what would be used and why', () => {
    const env = { WARPGRAD_DISABLE_CUDA: '1', WARPGRAD_CPU_THREADS: '1', WARPGRAD_CPU_ISA: 'plain' };
    const report = json(['doctor'], env);
    expect(report.cpu).toMatchObject({ threads: 1, instructionSet: 'plain' });
    expect(fs.existsSync(report.binary)).toBe(true);
    expect(report.wouldUse).toEqual({
      device: 'cpu',
      reason: 'no usable GPU: WARPGRAD_DISABLE_CUDA=1 hides GPUs; 1 thread, plain instructions',
    });
    const runs = ['attentionForward', 'attentionBackward', 'kdaForward', 'kdaBackward'];
    expect(report.operations).toEqual({ runs, refusals: [] });
    const { stdout } = warpgrad(['doctor'], env);
    expect(stdout).toContain(`would use     cpu: ${report.wouldUse.reason}\nruns there    ${runs.join(', ')}\n`);
    expect(stdout).toContain(`processor     ${report.cpu.model}, 1 thread in use\n`);
    expect(warpgrad(['doctor'], { ...env, WARPGRAD_CPU_THREADS: '2' }).stdout).toContain(', 2 threads in use\n');
  });
});

describe('check', () => {
  test('finds every operation right on this machine', () => {
    const { device, ok, rows } = json(['check', '--device', 'cpu']);
    expect({ device, ok }).toEqual({ device: 'cpu', ok: true });
    const checked = new Set(rows.map(({ operation, what, dtype }: any) => `${operation} ${what} ${dtype}`));
    const results = {
      attention: ['out', 'lse', 'dq', 'dk', 'dv', 'dSink'],
      kda: ['out', 'finalState', 'dq', 'dk', 'dv', 'dg', 'dbeta', 'dInitialState', 'dALog', 'dDtBias'],
    };
    const expected = Object.entries(results).flatMap(([operation, names]) =>
      names.flatMap((what) => ['float32', 'float16', 'bfloat16'].map((dtype) => `${operation} ${what} ${dtype}`)),
    );
    expect([...checked].sort()).toEqual(expected.sort());
  }, 180_000);

  // Squares and their sum, with the mistakes that an implementation could make.
  const reference: Reference = {
    results: ({ x }) => ({
      square: { shape: x.shape, data: x.data.map((value) => value ** 2) },
      sum: { shape: [1], data: Float64Array.of(x.data.reduce((sum, value) => sum + value ** 2, 0)) },
    }),
  };
  const inputs = { x: new Random(1).tensor([50]) };
  const right = reference.results(inputs);
  const withSquare = (change: (value: number, index: number) => number) => ({
    ...right,
    square: { shape: right['square'].shape, data: right['square'].data.map(change) },
  });
  test.each([
    ['exact results', right, true],
    ['results rounded to float32', withSquare((value) => Math.fround(value)), true],
    ['one element off by 1e-5 of the largest', withSquare((value, i) => value + (i === 7 ? 5e-5 : 0)), false],
    ['a NaN', withSquare((value, i) => (i === 7 ? NaN : value)), false],
    ['an infinity', withSquare((value, i) => (i === 7 ? Infinity : value)), false],
    ['a wrong shape', { ...right, square: { ...right['square'], shape: [5, 10] } }, false],
    ['a missing result', { sum: right['sum'] }, false],
  ])('judges %s', (_, actual, ok) => {
    const verdicts = judge(actual, inputs, reference, 'float32', new Random(2));
    expect(verdicts.map((verdict) => [verdict.what, verdict.ok])).toEqual([
      ['square', ok],
      ['sum', true],
    ]);
  });

  test('allows more where the precision is coarser', () => {
    const allowed = (['float32', 'float16', 'bfloat16'] as const).map(
      (dtype) => judge(right, inputs, reference, dtype, new Random(2))[0].allowed,
    );
    expect(allowed[1] / allowed[0]).toBeGreaterThan(500);
    expect(allowed[2] / allowed[1]).toBeCloseTo(8, 0);
  });
});

describe('bench', () => {
  test('reports rates and call overhead, and writes them', () => {
    const out = fs.mkdtempSync(path.join(os.tmpdir(), 'warpgrad-bench-'));
    try {
      const report = json(['bench', '--quick', '--op=attention', '--device=cpu', `--out=${out}`]);
      expect(report).toMatchObject({ operation: 'attention', device: 'cpu' });
      expect(Number.isNaN(Date.parse(report.date))).toBe(false);
      const passes = new Set(report.rows.map((row: any) => `${row.pass} ${row.dtype}`));
      expect(passes.size).toBe(4);
      for (const row of report.rows) {
        expect(row.share).toBeCloseTo(row.gflops / row.microKernelGflops, 6);
        expect(row.gflops).toBeGreaterThan(0);
      }
      expect(report.callOverhead.map(({ pass }: any) => pass)).toEqual(['forward', 'backward']);
      expect(JSON.parse(fs.readFileSync(path.join(out, 'attention-cpu.json'), 'utf8'))).toEqual(report);
      expect(fs.readFileSync(path.join(out, 'attention-cpu.md'), 'utf8')).toContain('| attention forward ');
      expect(fs.readFileSync(path.join(out, 'attention-cpu.svg'), 'utf8')).toMatch(/^<svg [^]*<\/svg>\n$/);
    } finally {
      fs.rmSync(out, { recursive: true });
    }
  }, 180_000);

  test.each([
    '/proc/none', // where Node itself tries to make folders for ever
    __filename,
    path.join(__filename, 'below'),
  ])('an --out that can be no folder, %s, is refused at once', (out) => {
    const { status, stderr } = warpgrad(['bench', '--quick', '--out', out]);
    expect(status).toBe(1);
    expect(stderr).toMatch(/^warpgrad bench: --out: can't write to the folder .*: E[A-Z]+: [^()]*\n$/);
    expect(stderr).toContain(out);
  });

  test('tables align numbers to the right', () => {
    const rows = [
      ['a', '10.5'],
      ['long', '2'],
    ];
    expect(formatTable(['name', 'ms'], rows)).toBe('name    ms\n────  ────\na     10.5\nlong     2');
    expect(formatMarkdown(['name', 'ms'], rows)).toBe(
      '| name |   ms |\n| ---- | ---: |\n| a    | 10.5 |\n| long |    2 |',
    );
  });
});
