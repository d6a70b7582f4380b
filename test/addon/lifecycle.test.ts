import { availableParallelism } from 'node:os';
import type { SystemInfo } from '../../lib';
import { runScript } from '../support/child';

jest.setTimeout(150_000);

// How processes and worker threads with the addon end. Expected values: the exit codes and signals that Node documents.

describe('a process with work queued ends', () => {
  test.each([
    ['process.exit', 7, ''],
    ['process.exit in a promise', 7, ''],
    ['throw', 1, 'thrown on purpose'],
    ['rejection', 1, 'rejected on purpose'],
    ['end of script', 0, ''],
    ['end of script while reading', 0, ''],
  ])('by %s', async (way, code, message) => {
    const end = await runScript('exit.ts', { args: [way] });
    expect(end).toMatchObject({ code, signal: null });
    expect(end.stderr).toContain(message);
    if (message === '') expect(end.stderr).toBe('');
    if (way.endsWith('reading')) expect(end.stdout).toBe('ready\nread 262144\n');
  });

  test.each(['SIGTERM', 'SIGINT'] as const)('by %s', async (signal) => {
    const end = await runScript('exit.ts', { args: ['wait for a signal'], signal });
    expect(end).toMatchObject({ code: null, signal, stderr: '' });
  });
});

describe('node 21481, onnxruntime 24486, node-addon-api 902: worker threads', () => {
  test.each([
    'one after the other',
    'several at once, beside the main thread',
    'terminate in the middle of an operation',
    'process.exit in a worker with work queued',
    'exit of the process with busy workers',
  ])('%s', async (way) => {
    const end = await runScript('workers.ts', { args: [way] });
    expect(end).toEqual({ code: 0, signal: null, stdout: 'done\n', stderr: '' });
  });
});

test('onnxruntime 24486: the library loaded twice in one process', async () => {
  expect(await runScript('loadTwice.ts')).toEqual({ code: 0, signal: null, stdout: 'done\n', stderr: '' });
});

test('jest.resetModules: a fresh copy of the library works beside the old one', async () => {
  type Library = typeof import('../../lib');
  const first = jest.requireActual<Library>('../../lib');
  const kept = first.Tensor.from([1, 2]);
  jest.resetModules();
  const second = jest.requireActual<Library>('../../lib');
  expect(second.Tensor).not.toBe(first.Tensor);
  using tensor = second.Tensor.from([3, 4]);
  expect([...(await tensor.data())]).toEqual([3, 4]);
  expect([...(await kept.data())]).toEqual([1, 2]);
  kept.dispose();
});

describe('node 26544: environment variables', () => {
  const info = ({ stdout }: { stdout: string }) => JSON.parse(stdout) as SystemInfo;

  test('set for the process', async () => {
    const env = { WARPGRAD_CPU_THREADS: '3', WARPGRAD_CPU_ISA: 'plain' };
    expect(info(await runScript('environment.ts', { env })).cpu).toMatchObject({ threads: 3, instructionSet: 'plain' });
  });

  test('set in JavaScript before the library loads', async () => {
    const { cpu, cuda } = info(await runScript('environmentInJavaScript.ts'));
    expect(cpu).toMatchObject({ threads: 1, instructionSet: 'plain' });
    expect(cuda).toMatchObject({ available: false, devices: [], reason: 'WARPGRAD_DISABLE_CUDA=1 hides GPUs' });
  });

  test('not set, or empty: all processors, the best instruction set', async () => {
    for (const env of [{}, { WARPGRAD_CPU_THREADS: '', WARPGRAD_CPU_ISA: '' }]) {
      const { cpu } = info(await runScript('environment.ts', { env }));
      expect(cpu.threads).toBe(availableParallelism());
      expect(cpu.instructionSet).toBe(cpu.instructionSets.at(-1));
    }
  });

  test.each([
    ['WARPGRAD_CPU_THREADS', 'many', "WARPGRAD_CPU_THREADS must be a whole number from 1 to 1024, got 'many'"],
    ['WARPGRAD_CPU_THREADS', '0', "WARPGRAD_CPU_THREADS must be a whole number from 1 to 1024, got '0'"],
    ['WARPGRAD_CPU_ISA', 'mmx', 'mmx'],
  ])('%s=%s is refused by name', async (name, value, message) => {
    const end = await runScript('environment.ts', { env: { [name]: value } });
    expect(end).toMatchObject({ code: 1, signal: null });
    expect(end.stderr).toContain(message);
  });
});
