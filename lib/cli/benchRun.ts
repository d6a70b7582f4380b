import { configure, Stream, systemInfo, type Device } from '../index';
import { DTYPES } from '../dtype';
import { addon } from '../native';
import { makeRun, TINY, type BenchRun, type Operation, type Pass } from './benchCases';
import { summarize, time } from './measure';
import { type FloatDType } from './precision';
import { Progress } from './progress';

/** How long to measure. */
export interface Effort {
  /** Every round measures everything once, so that a slow moment of the machine falls on all alike. */
  readonly rounds: number;
  /** Least time of one measurement; short calls are repeated. */
  readonly leastMilliseconds: number;
}

/** The speed of one operation with a number of threads. */
export interface RateRow {
  readonly operation: Operation;
  readonly pass: Pass;
  readonly shape: string;
  readonly dtype: FloatDType;
  readonly threads: number;
  /** Median of a call. */
  readonly milliseconds: number;
  /** Distance of the quartiles over the median. */
  readonly spread: number;
  readonly gflops: number;
  /** Rate of the matrix micro-kernel with the same dtype and threads. */
  readonly microKernelGflops: number;
  /** gflops over microKernelGflops. */
  readonly share: number;
  /** How many times as fast as with one thread. */
  readonly scaling: number;
  /** How many times as fast as float32. */
  readonly versusFloat32: number;
}

/** What a call costs in JavaScript: validation, allocation of the results, enqueueing. */
export interface OverheadRow {
  readonly operation: Operation;
  readonly pass: Pass;
  readonly shape: string;
  /** Median of a call. */
  readonly microseconds: number;
  readonly spread: number;
}

export const PASSES: readonly Pass[] = ['forward', 'backward'];

interface Sample {
  readonly run: BenchRun;
  readonly pass: Pass;
  readonly threads: number;
  readonly rounds: number[];
}

/** Milliseconds of one call, until its results are there. */
async function timeCall(run: BenchRun, pass: Pass, least: number): Promise<number> {
  const stream = Stream.current();
  return time(async () => {
    const results = run.call[pass]();
    await stream.synchronize();
    for (const tensor of results) tensor.dispose();
  }, least);
}

/** The dtype whose products the micro-kernel of this processor makes: bfloat16 ones only where it has instructions for it. */
function yardstick(dtype: FloatDType, instructionSet: string): FloatDType {
  return dtype === 'bfloat16' && !['avx512bf16', 'amx'].includes(instructionSet) ? 'float32' : dtype;
}

/** Measures every run with one thread and with all, in interleaved rounds. */
export async function measureRates(runs: readonly BenchRun[], effort: Effort): Promise<RateRow[]> {
  const { threads: all, instructionSet } = systemInfo().cpu;
  const counts = all === 1 ? [1] : [1, all];
  const samples: Sample[] = counts.flatMap((threads) =>
    runs.flatMap((run) => PASSES.map((pass) => ({ run, pass, threads, rounds: [] }))),
  );
  const peaks = new Map<string, number[]>();
  const progress = new Progress(samples.length * effort.rounds);
  try {
    for (let round = 0; round < effort.rounds; round++) {
      for (const threads of counts) {
        configure({ cpuThreads: threads });
        for (const dtype of new Set(runs.map((run) => yardstick(run.dtype, instructionSet)))) {
          const key = `${dtype} ${threads}`;
          peaks.set(key, [...(peaks.get(key) ?? []), addon.microKernelGflops(DTYPES[dtype].nativeCode)]);
        }
        for (const sample of samples.filter((candidate) => candidate.threads === threads)) {
          progress.label(`${sample.run.label} ${sample.run.dtype} ${sample.pass}, ${threads} threads`);
          sample.rounds.push(await timeCall(sample.run, sample.pass, effort.leastMilliseconds));
          progress.step();
        }
      }
    }
  } finally {
    progress.stop();
    configure({ cpuThreads: all });
  }
  const peak = (dtype: FloatDType, threads: number) =>
    summarize(peaks.get(`${yardstick(dtype, instructionSet)} ${threads}`) ?? []).middle;
  return samples.map((sample) => rateRow(sample, samples, peak(sample.run.dtype, sample.threads)));
}

function rateRow(sample: Sample, samples: readonly Sample[], microKernelGflops: number): RateRow {
  const { run, pass, threads, rounds } = sample;
  const { middle: milliseconds, spread } = summarize(rounds);
  const gflops = run.flops[pass] / milliseconds / 1e6;
  /** How many times as long another sample takes that differs in one thing. */
  const times = (dtype: FloatDType, threadsOfOther: number) => {
    const other = samples.find(
      (candidate) =>
        candidate.pass === pass &&
        candidate.threads === threadsOfOther &&
        candidate.run.label === run.label &&
        candidate.run.dtype === dtype,
    );
    return other ? summarize(other.rounds).middle / milliseconds : NaN;
  };
  return {
    operation: run.operation,
    pass,
    shape: run.label,
    dtype: run.dtype,
    threads,
    milliseconds,
    spread,
    gflops,
    microKernelGflops,
    share: gflops / microKernelGflops,
    scaling: times(run.dtype, 1),
    versusFloat32: times('float32', threads),
  };
}

/** Calls of one measurement of the overhead; a stream takes up to 1,024 without making the caller wait. */
const CALLS = 500;

/** Measures calls on tiny shapes, without waiting for their results: the median call of each round. */
export async function measureOverhead(
  calls: readonly { readonly operation: Operation; readonly passes: readonly Pass[] }[],
  dtype: FloatDType,
  device: Device,
  effort: Effort,
): Promise<OverheadRow[]> {
  const stream = Stream.current(device);
  const runs = calls.map(({ operation, passes }) => ({ run: makeRun(operation, TINY, dtype, device), passes }));
  const samples = runs.flatMap(({ run, passes }) => passes.map((pass) => ({ run, pass, rounds: [] as number[] })));
  for (let round = 0; round < effort.rounds; round++) {
    for (const { run, pass, rounds } of samples) {
      const times = [];
      for (let call = 0; call < CALLS; call++) {
        const start = performance.now();
        const results = run.call[pass]();
        times.push(performance.now() - start);
        for (const tensor of results) tensor.dispose();
      }
      rounds.push(summarize(times).middle);
      await stream.synchronize();
    }
  }
  for (const { run } of runs) run.dispose();
  return samples.map(({ run, pass, rounds }) => {
    const { middle, spread } = summarize(rounds);
    return { operation: run.operation, pass, shape: run.label, microseconds: middle * 1000, spread };
  });
}
