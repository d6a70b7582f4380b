import { Stream, systemInfo, type Device } from '../index';
import { cudaIndex } from '../device';
import { BENCH_DIMS, makeRun, type Operation, type Pass } from './benchCases';
import { measureOverhead, PASSES, type Effort, type OverheadRow } from './benchRun';
import { expectRight, type TimedRun } from './benchVerify';
import { unlessRefused } from './check';
import { summarize } from './measure';
import { type FloatDType } from './precision';
import { Progress } from './progress';

/** The speed of one operation on a GPU. */
export interface GpuRateRow {
  readonly operation: Operation;
  readonly pass: Pass;
  readonly shape: string;
  readonly dtype: FloatDType;
  /** Median of a call. */
  readonly milliseconds: number;
  /** Distance of the quartiles over the median. */
  readonly spread: number;
  readonly tflops: number;
}

/** What `warpgrad bench --json` prints of a GPU, without the name of the operation. */
export interface GpuMeasurements {
  readonly device: string;
  readonly gpu: string;
  readonly date: string;
  readonly versions: {
    readonly warpgrad: string;
    readonly node: string;
    readonly platform: string;
    /** That the driver supports. */
    readonly cuda: string;
  };
  readonly rows: readonly GpuRateRow[];
  readonly callOverhead: readonly OverheadRow[];
  /** Why the GPU refused calls. */
  readonly refusals: readonly string[];
}

const DTYPES: readonly FloatDType[] = ['bfloat16', 'float16'];
const FULL: Effort = { rounds: 7, leastMilliseconds: 50 };
const QUICK: Effort = { rounds: 3, leastMilliseconds: 20 };

/** Every run that the GPU takes, with the passes that it takes; why it refuses the others goes to `refusals`. */
function makeRuns(operations: readonly Operation[], device: Device, quick: boolean, refusals: Set<string>): TimedRun[] {
  const [tokens, heads] = [quick ? 1024 : 4096, 16];
  const runs: TimedRun[] = [];
  for (const operation of operations) {
    for (const dim of BENCH_DIMS[operation]) {
      for (const dtype of DTYPES) {
        const run = unlessRefused(refusals, () => makeRun(operation, { tokens, heads, dim }, dtype, device));
        if (!run) continue;
        const passes = PASSES.filter((pass) => {
          const results = unlessRefused(refusals, () => run.call[pass]());
          for (const tensor of results ?? []) tensor.dispose();
          return results !== undefined;
        });
        runs.push({ run, passes });
      }
    }
  }
  return runs;
}

/** Milliseconds of a call in a burst that lasts at least `least` of them: the waiting at its end hardly counts then. */
async function timeBurst(call: () => void, stream: Stream, least: number): Promise<number> {
  const burst = async (calls: number): Promise<number> => {
    await stream.synchronize();
    const start = performance.now();
    for (let n = 0; n < calls; n++) call();
    await stream.synchronize();
    return (performance.now() - start) / calls;
  };
  const estimate = await burst(10);
  return burst(Math.max(10, Math.ceil(least / estimate)));
}

async function measureRates(runs: readonly TimedRun[], device: Device, effort: Effort): Promise<GpuRateRow[]> {
  const stream = Stream.current(device);
  const samples = runs.flatMap(({ run, passes }) => passes.map((pass) => ({ run, pass, times: [] as number[] })));
  const progress = new Progress(samples.length * effort.rounds);
  try {
    for (let round = 0; round < effort.rounds; round++) {
      for (const { run, pass, times } of samples) {
        progress.label(`${run.label} ${run.dtype} ${pass}`);
        const call = () => run.call[pass]().forEach((tensor) => tensor.dispose());
        times.push(await timeBurst(call, stream, effort.leastMilliseconds));
        progress.step();
      }
    }
  } finally {
    progress.stop();
  }
  return samples.map(({ run, pass, times }) => {
    const { middle: milliseconds, spread } = summarize(times);
    const { operation, label: shape, dtype, flops } = run;
    return { operation, pass, shape, dtype, milliseconds, spread, tflops: flops[pass] / milliseconds / 1e9 };
  });
}

/** Measures what the GPU takes, in interleaved rounds. */
export async function measureGpu(
  operations: readonly Operation[],
  device: Device,
  quick: boolean,
): Promise<GpuMeasurements> {
  const refusals = new Set<string>();
  const runs = makeRuns(operations, device, quick, refusals);
  const effort = quick ? QUICK : FULL;
  try {
    await expectRight(operations, runs, DTYPES, device);
    const rows = await measureRates(runs, device, effort);
    const calls = operations.flatMap((operation) => {
      const first = runs.find(({ run }) => run.operation === operation);
      return first ? [{ operation, passes: first.passes }] : [];
    });
    const callOverhead = await measureOverhead(calls, DTYPES[0], device, effort);
    const { version, nodeVersion, platform, cuda } = systemInfo();
    return {
      device,
      gpu: cuda.devices.find(({ index }) => index === cudaIndex(device))?.name ?? device,
      date: new Date().toISOString(),
      versions: { warpgrad: version, node: nodeVersion, platform, cuda: cuda.driverVersion ?? 'unknown' },
      rows,
      callOverhead,
      refusals: [...refusals],
    };
  } finally {
    for (const { run } of runs) run.dispose();
  }
}
