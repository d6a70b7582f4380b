import { cpus } from 'node:os';
import { readFileSync } from 'node:fs';
import path from 'node:path';

import { native, WarpgradError, WarpgradTypeError, WarpgradRangeError } from './errors';
import { addon, binaryPath, expectInstructionSet, MAX_CPU_THREADS, PACKAGE_ROOT, type InstructionSet } from './native';
import { describe, expectKnownOptions } from './validate';

/** A device by name; `cuda` is `cuda:0`. */
export type Device = 'cpu' | 'cuda' | `cuda:${number}`;

/** A device option: `auto` is the first usable GPU, or the CPU where there is none. */
export type DeviceOption = Device | 'auto';

export interface GpuInfo {
  readonly index: number;
  readonly name: string;
  readonly computeCapability: string;
  readonly memoryBytes: number;
  readonly usable: boolean;
  /** Why it is not usable. */
  readonly reason?: string;
}

export interface SystemInfo {
  readonly version: string;
  readonly nodeVersion: string;
  readonly platform: string;
  /** The file that the native addon was loaded from. */
  readonly binary: string;
  readonly cpu: {
    readonly model: string;
    readonly threads: number;
    readonly instructionSet: InstructionSet;
    readonly instructionSets: readonly InstructionSet[];
  };
  readonly cuda: {
    /** Whether this build has GPU kernels. */
    readonly compiled: boolean;
    readonly available: boolean;
    /** CUDA version that the driver supports, such as `13.0`. */
    readonly driverVersion?: string;
    /** Why no GPU is used. */
    readonly reason?: string;
    readonly devices: readonly GpuInfo[];
  };
}

/** Index of a cuda device, or -1 for the CPU. */
export function cudaIndex(device: Device): number {
  return device === 'cpu' ? -1 : device === 'cuda' ? 0 : Number(device.slice(5));
}

/** What the driver says; asked once, since it does not change in a process. */
let gpuInfo: ReturnType<typeof addon.gpuInfo> | undefined;

function gpus(): SystemInfo['cuda'] {
  gpuInfo ??= native(() => addon.gpuInfo());
  const { compiled, driverVersion, reason, devices } = gpuInfo;
  if (process.env['WARPGRAD_DISABLE_CUDA'] === '1') {
    return { compiled, available: false, reason: 'WARPGRAD_DISABLE_CUDA=1 hides GPUs', devices: [] };
  }
  const list: GpuInfo[] = devices.map(({ unusableBecause, ...gpu }) =>
    unusableBecause ? { ...gpu, usable: false, reason: unusableBecause } : { ...gpu, usable: true },
  );
  const available = list.some((gpu) => gpu.usable);
  const why = reason || list.find((gpu) => !gpu.usable)?.reason;
  return {
    compiled,
    available,
    ...(driverVersion > 0 && {
      driverVersion: `${Math.floor(driverVersion / 1000)}.${Math.floor((driverVersion % 1000) / 10)}`,
    }),
    ...(!available && why && { reason: why }),
    devices: list,
  };
}

/** What this package sees of the machine and what it would use. */
export function systemInfo(): SystemInfo {
  const manifest = JSON.parse(readFileSync(path.join(PACKAGE_ROOT, 'package.json'), 'utf8')) as { version: string };
  return {
    version: manifest.version,
    nodeVersion: process.version,
    platform: `${process.platform}-${process.arch}`,
    binary: binaryPath(),
    cpu: {
      model: cpus()[0]?.model ?? 'unknown',
      ...(native(() => addon.cpuInfo()) as Omit<SystemInfo['cpu'], 'model'>),
    },
    cuda: gpus(),
  };
}

/**
 * Checks a device option and resolves `auto`.
 * @throws WarpgradTypeError for anything but a device name; WarpgradError with ERR_WARPGRAD_NO_DEVICE or
 * ERR_WARPGRAD_UNSUPPORTED for a GPU that can't be used.
 */
export function resolveDevice(caller: string, value: unknown): Device {
  if (value === 'cpu') return 'cpu';
  if (value !== 'auto' && !(typeof value === 'string' && /^cuda(:\d{1,4})?$/.test(value))) {
    throw new WarpgradTypeError(`${caller}: device must be 'cpu', 'cuda', 'cuda:N' or 'auto', got ${describe(value)}`);
  }
  const { devices, reason } = gpus();
  if (value === 'auto') {
    const usable = devices.find((gpu) => gpu.usable);
    return usable ? `cuda:${usable.index}` : 'cpu';
  }
  const index = cudaIndex(value as Device);
  const gpu = devices.find((candidate) => candidate.index === index);
  if (!gpu) {
    const why = devices.length > 0 ? `the devices are 0 to ${devices.length - 1}` : reason;
    throw new WarpgradError('ERR_WARPGRAD_NO_DEVICE', `${caller}: there is no device ${value}: ${why}`);
  }
  if (!gpu.usable) {
    throw new WarpgradError(
      'ERR_WARPGRAD_UNSUPPORTED',
      `${caller}: ${value} (${gpu.name}) can't be used: ${gpu.reason}`,
    );
  }
  return `cuda:${index}`;
}

export interface ConfigureOptions {
  /** Threads that a CPU operation uses, the calling stream's included. Default: all processors, or WARPGRAD_CPU_THREADS. */
  cpuThreads?: number | undefined;
  /** Instruction set of the CPU kernels, for testing each path. Default: the best one, or WARPGRAD_CPU_ISA. */
  cpuInstructionSet?: InstructionSet | 'auto' | undefined;
}

/**
 * Changes how CPU operations run in this environment (main thread or worker thread); waits for queued ones first.
 * @throws WarpgradRangeError, WarpgradTypeError; WarpgradError with ERR_WARPGRAD_UNSUPPORTED for an instruction set that
 * the processor lacks.
 */
export function configure(options: ConfigureOptions): void {
  expectKnownOptions('configure', options, ['cpuThreads', 'cpuInstructionSet']);
  const current = native(() => addon.cpuInfo());
  const { cpuThreads: threads = current.threads, cpuInstructionSet = current.instructionSet } = options;
  if (typeof threads !== 'number') {
    throw new WarpgradTypeError(`configure: cpuThreads must be a number, got ${describe(threads)}`);
  }
  if (!Number.isInteger(threads) || threads < 1 || threads > MAX_CPU_THREADS) {
    throw new WarpgradRangeError(
      `configure: cpuThreads must be a whole number from 1 to ${MAX_CPU_THREADS}, got ${threads}`,
    );
  }
  const isa = expectInstructionSet('configure: cpuInstructionSet', cpuInstructionSet);
  if (isa !== 'auto' && !current.instructionSets.includes(isa)) {
    throw new WarpgradError(
      'ERR_WARPGRAD_UNSUPPORTED',
      `configure: cpuInstructionSet '${isa}' is beyond this processor; it has ${current.instructionSets.join(', ')}`,
    );
  }
  native(() => addon.configureCpu(threads, isa));
}

export interface MemoryStats {
  /** Bytes of tensors that are alive in this environment, not counting workspaces. */
  readonly liveBytes: number;
  readonly peakBytes: number;
  /** Number of live buffers. */
  readonly allocations: number;
}

/** Memory that the tensors of this environment take on a device. */
export function memoryStats(device: DeviceOption = 'cpu'): MemoryStats {
  const resolved = resolveDevice('memoryStats', device);
  return native(() => addon.memoryStats(resolved !== 'cpu', Math.max(0, cudaIndex(resolved))));
}
