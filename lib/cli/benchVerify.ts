import { WarpgradError, type Device } from '../index';
import { type BenchRun, type Operation, type Pass } from './benchCases';
import { runChecks } from './check';
import { type FloatDType } from './precision';

/** A run, and which of its passes are to be timed. */
export interface TimedRun {
  readonly run: BenchRun;
  readonly passes: readonly Pass[];
}

/** Throws unless every result that is about to be timed is right: the options on small shapes, and the shapes themselves. */
export async function expectRight(
  operations: readonly Operation[],
  runs: readonly TimedRun[],
  dtypes: readonly FloatDType[],
  device: Device,
): Promise<void> {
  const small = await runChecks(
    device,
    ({ operation }, dtype) => operations.includes(operation) && dtypes.includes(dtype),
  );
  const large = [];
  for (const { run, passes } of runs) {
    large.push(...(await run.verify(passes)).map((verdict) => ({ ...verdict, case: run.label })));
  }
  const wrong = [...small.rows, ...large].filter(({ ok }) => !ok);
  if (wrong.length === 0) return;
  const [first] = wrong;
  throw new WarpgradError(
    'ERR_WARPGRAD_INTERNAL',
    `${wrong.length} results are wrong, so nothing was measured; the first: ${first.what} of ${first.case}, ` +
      `error ${first.error.toExponential(1)}, allowed ${first.allowed.toExponential(1)}. See warpgrad check`,
  );
}
