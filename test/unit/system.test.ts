import { configure, memoryStats, Stream, systemInfo, Tensor, attentionForward } from '../../lib';
import { withCpu } from '../support/cpu';
import { expectError } from '../support/expectError';

// Expected values: what Node itself says of the machine, and messages written out.

const { version } = jest.requireActual<{ version: string }>('../../package.json');
const gpuUsable = systemInfo().cuda.available;

describe('systemInfo', () => {
  test('names the package, Node and the platform', () => {
    expect(systemInfo()).toMatchObject({ version, nodeVersion: process.version, platform: 'linux-x64' });
  });

  test('names the processor, its threads and its instruction sets', () => {
    const { cpu } = systemInfo();
    expect(cpu.threads).toBeGreaterThanOrEqual(1);
    expect(cpu.instructionSets).toContain('plain');
    expect(cpu.instructionSets).toContain(cpu.instructionSet);
  });

  test('says why no GPU is used, where none is', () => {
    const { cuda } = systemInfo();
    expect(cuda.available).toBe(cuda.devices.some(({ usable }) => usable));
    expect(typeof cuda.reason).toBe(cuda.available ? 'undefined' : 'string');
  });
});

describe('configure', () => {
  test('changes the number of threads and the instruction set', async () => {
    await withCpu({ cpuThreads: 3, cpuInstructionSet: 'plain' }, () => {
      expect(systemInfo().cpu).toMatchObject({ threads: 3, instructionSet: 'plain' });
    });
    expect(systemInfo().cpu.instructionSet).not.toBe('plain');
  });

  test('waits for queued work, which is not lost', async () => {
    using q = Tensor.from(new Float32Array(1024 * 64).fill(0.5), [1, 1024, 1, 64]);
    const { out } = attentionForward(q, q, q);
    await withCpu({ cpuThreads: 1 }, async () => {
      const data = await out.data();
      expect(data.every((value) => Math.abs(value - 0.5) < 1e-6)).toBe(true);
    });
  });

  test.each<
    [string, object, 'ERR_INVALID_ARG_TYPE' | 'ERR_OUT_OF_RANGE' | 'ERR_WARPGRAD_UNSUPPORTED', string | RegExp]
  >([
    [
      'no threads',
      { cpuThreads: 0 },
      'ERR_OUT_OF_RANGE',
      /^configure: cpuThreads must be a whole number from 1 to \d+, got 0$/,
    ],
    ['half threads', { cpuThreads: 1.5 }, 'ERR_OUT_OF_RANGE', /^configure: cpuThreads must be .*, got 1\.5$/],
    ['too many threads', { cpuThreads: 1e6 }, 'ERR_OUT_OF_RANGE', /^configure: cpuThreads must be .*, got 1000000$/],
    ['threads as text', { cpuThreads: '2' }, 'ERR_INVALID_ARG_TYPE', /^configure: cpuThreads must be a number, got /],
    ['an unknown instruction set', { cpuInstructionSet: 'sse9' }, 'ERR_INVALID_ARG_TYPE', /sse9/],
    [
      'an unknown option',
      { threads: 2 },
      'ERR_INVALID_ARG_TYPE',
      /^configure: unknown option 'threads'; the options are cpuThreads, /,
    ],
  ])('refuses %s', (_title, options, code, message) => {
    const before = systemInfo().cpu;
    expectError(() => configure(options), code, message);
    expect(systemInfo().cpu).toEqual(before);
  });
});

// A machine with a usable GPU has nothing to refuse here; test/gpu takes over.
(gpuUsable ? describe.skip : describe)('without a GPU (skipped where there is one)', () => {
  test.each<[string, () => unknown, string]>([
    ['Tensor.zeros', () => Tensor.zeros([1], { device: 'cuda' }), 'Tensor.zeros: there is no device cuda: '],
    ['Tensor.from', () => Tensor.from([1], [1], { device: 'cuda:3' }), 'Tensor.from: there is no device cuda:3: '],
    ['Stream', () => new Stream('cuda'), 'Stream: there is no device cuda: '],
    ['Stream.current', () => Stream.current('cuda:1'), 'Stream.current: there is no device cuda:1: '],
    ['memoryStats', () => memoryStats('cuda'), 'memoryStats: there is no device cuda: '],
    ['to', () => Tensor.zeros([1]).to({ device: 'cuda' }), 'to: there is no device cuda: '],
  ])('%s on cuda: ERR_WARPGRAD_NO_DEVICE, and why', (_name, call, message) => {
    expectError(call, 'ERR_WARPGRAD_NO_DEVICE', new RegExp(`^${message}.+`));
  });

  test("'auto' is the CPU", () => {
    expect(new Stream('auto').device).toBe('cpu');
  });
});
