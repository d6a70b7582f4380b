import { availableParallelism } from 'node:os';
import path from 'node:path';

import { WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { describe } from './validate';

/** The typed surface of the addon: everything that crosses between TypeScript and C++ is listed here. */
export interface NativeTensor {
  /** Opaque: only the addon can look inside. */
  readonly [external]: never;
}
declare const external: unique symbol;

export interface NativeStream {
  synchronize(): Promise<void>;
  synchronizeSync(): void;
  record(): NativeEvent;
  wait(event: NativeEvent): void;
  handle(): bigint;
  capture(enqueueWork: () => void): NativeGraph;
}

export interface NativeEvent {
  reached(): boolean;
  /** Both events are reached and of one device. */
  millisecondsSince(earlier: NativeEvent): number;
}

export interface NativeGraph {
  replay(): void;
  release(): void;
}

type OptionalTensor = NativeTensor | undefined;
type AttentionArguments = [
  scale: number,
  softcap: number,
  windowLeft: number,
  windowRight: number,
  cuSeqlensQ: Int32Array | undefined,
  cuSeqlensK: Int32Array | undefined,
];
export type KdaArguments = [
  scale: number,
  qkL2Norm: boolean,
  gateKind: number,
  lowerBound: number,
  betaLogits: boolean,
  allowNegEigval: boolean,
  stateVk: boolean,
  batchInvariant: boolean,
  cuSeqlens: Int32Array | undefined,
];
/** q, k, v, g, beta, aLog, dtBias, initialState */
export type KdaInputs = [
  NativeTensor,
  NativeTensor,
  NativeTensor,
  NativeTensor,
  NativeTensor,
  OptionalTensor,
  OptionalTensor,
  OptionalTensor,
];

export interface NativeGpu {
  index: number;
  name: string;
  computeCapability: string;
  memoryBytes: number;
  unusableBecause: string;
}

export interface NativeModule {
  readonly NativeStream: new (isCuda: boolean, deviceIndex: number) => NativeStream;
  readonly NativeEvent: new () => NativeEvent;
  readonly NativeGraph: new () => NativeGraph;
  /** The shape, and behind it the strides, for the next call that takes a rank; in memory that the addon reads. */
  readonly sizes: Float64Array;
  /** `reused`: a released tensor that is filled and given again, which is cheaper than a new one. */
  tensorAllocate(
    stream: NativeStream,
    dtype: number,
    rank: number,
    zeroed: boolean,
    reused: OptionalTensor,
  ): NativeTensor;
  /** A tensor without memory, which an operation gives some to when it is to write it. */
  tensorHandle(): NativeTensor;
  tensorAdopt(
    stream: NativeStream,
    dtype: number,
    rank: number,
    address: bigint,
    owner: object | undefined,
  ): NativeTensor;
  tensorView(tensor: NativeTensor, rank: number, offset: number, reused: OptionalTensor): NativeTensor;
  tensorRelease(tensor: NativeTensor): void;
  tensorAddress(tensor: NativeTensor): bigint;
  tensorWrite(stream: NativeStream, tensor: NativeTensor, array: ArrayBufferView): void;
  tensorRead(stream: NativeStream, tensor: NativeTensor): Promise<ArrayBuffer>;
  tensorReadSync(stream: NativeStream, tensor: NativeTensor): ArrayBuffer;
  /** `overwrites`: the target is not fresh, others may use it. */
  tensorCopy(stream: NativeStream, target: NativeTensor, source: NativeTensor, overwrites: boolean): void;
  initialize(cpuThreads: number, cpuIsa: string): void;
  configureCpu(threads: number, isa: string): void;
  cpuInfo(): { threads: number; instructionSet: string; instructionSets: string[] };
  gpuInfo(): { compiled: boolean; driverVersion: number; reason: string; devices: NativeGpu[] };
  memoryStats(isCuda: boolean, deviceIndex: number): { liveBytes: number; peakBytes: number; allocations: number };
  /** Rate of the CPU backend's matrix micro-kernel with all threads, GFLOP/s; blocks for about a tenth of a second. */
  microKernelGflops(dtype: number): number;
  attentionForward(
    stream: NativeStream,
    q: NativeTensor,
    k: NativeTensor,
    v: NativeTensor,
    sink: OptionalTensor,
    out: NativeTensor,
    lse: NativeTensor,
    ...options: AttentionArguments
  ): void;
  attentionBackward(
    stream: NativeStream,
    dOut: NativeTensor,
    q: NativeTensor,
    k: NativeTensor,
    v: NativeTensor,
    out: NativeTensor,
    lse: NativeTensor,
    sink: OptionalTensor,
    dq: NativeTensor,
    dk: NativeTensor,
    dv: NativeTensor,
    dSink: OptionalTensor,
    ...options: [...AttentionArguments, deterministic: boolean]
  ): void;
  /** How many floats the saving mode of kdaForward keeps of one chunk and value head. */
  kdaSavedElems(stream: NativeStream, keyDim: number, valueDim: number): number;
  kdaForward(
    stream: NativeStream,
    ...rest: [
      ...KdaInputs,
      out: NativeTensor,
      finalState: OptionalTensor,
      chunkStates: OptionalTensor,
      saved: OptionalTensor,
      ...options: KdaArguments,
    ]
  ): void;
  kdaBackward(
    stream: NativeStream,
    dOut: NativeTensor,
    dFinalState: OptionalTensor,
    ...rest: [
      ...KdaInputs,
      saved: OptionalTensor,
      dq: NativeTensor,
      dk: NativeTensor,
      dv: NativeTensor,
      dg: NativeTensor,
      dbeta: NativeTensor,
      dInitialState: OptionalTensor,
      dALog: OptionalTensor,
      dDtBias: OptionalTensor,
      ...options: KdaArguments,
    ]
  ): void;
}

/** The package's folder, from lib/ as from dist/. */
export const PACKAGE_ROOT = path.resolve(__dirname, '..');

/** How many threads a CPU operation may use when nothing says otherwise. */
function defaultCpuThreads(): number {
  const text = process.env['WARPGRAD_CPU_THREADS'];
  if (text === undefined || text === '') return availableParallelism();
  const threads = Number(text);
  if (Number.isInteger(threads) && threads >= 1 && threads <= MAX_CPU_THREADS) return threads;
  throw new WarpgradRangeError(
    `WARPGRAD_CPU_THREADS must be a whole number from 1 to ${MAX_CPU_THREADS}, got '${text}'`,
  );
}

export const MAX_CPU_THREADS = 1024;

/** Instruction sets that the CPU kernels are compiled for, each including the ones before it. */
export const INSTRUCTION_SETS = ['plain', 'avx2', 'avx512', 'avx512bf16', 'amx'] as const;

export type InstructionSet = (typeof INSTRUCTION_SETS)[number];

/** Checks the name of an instruction set, or `auto`. @throws WarpgradTypeError */
export function expectInstructionSet(name: string, value: unknown): InstructionSet | 'auto' {
  const names: readonly unknown[] = [...INSTRUCTION_SETS, 'auto'];
  if (names.includes(value)) return value as InstructionSet | 'auto';
  throw new WarpgradTypeError(`${name} must be one of ${names.join(', ')}, got ${describe(value)}`);
}

/** Hands the defaults to a freshly loaded addon. @throws WarpgradError when the processor lacks WARPGRAD_CPU_ISA */
function initialize(addon: NativeModule): void {
  const isa = expectInstructionSet('WARPGRAD_CPU_ISA', process.env['WARPGRAD_CPU_ISA'] || 'auto');
  const threads = defaultCpuThreads();
  try {
    addon.initialize(threads, isa);
  } catch (error) {
    throw new WarpgradError('ERR_WARPGRAD_UNSUPPORTED', `WARPGRAD_CPU_ISA: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

/** Finds the binary, prebuilt or built here, and requires it; it has no types of its own. */
// eslint-disable-next-line @typescript-eslint/no-require-imports
const loader = require('node-gyp-build') as { (root: string): NativeModule; path(root: string): string };

/** The file that the addon was loaded from. */
export function binaryPath(): string {
  return loader.path(PACKAGE_ROOT);
}

function load(): NativeModule {
  let addon: NativeModule;
  try {
    addon = loader(PACKAGE_ROOT);
  } catch (error) {
    throw new WarpgradError(
      'ERR_WARPGRAD_BINARY',
      `warpgrad: the native addon can't be loaded on ${process.platform}-${process.arch}, Node ${process.version}: ` +
        `${(error as Error).message.replace(/\.$/, '')}. Prebuilt binaries are for Linux x64 with glibc 2.34 or later; elsewhere build from ` +
        'source with `npm rebuild warpgrad` (needs CMake and a C++20 compiler). Bundlers must leave warpgrad external.',
      { cause: error },
    );
  }
  initialize(addon);
  return addon;
}

export const addon: NativeModule = load();
