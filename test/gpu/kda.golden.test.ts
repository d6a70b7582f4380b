import type { Float64Tensor } from '../../lib/reference/float64';
import { failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { bfloat16Tolerance, GOLDEN_KDA_RESULTS, goldenNames, kdaCaseOf, loadGolden } from '../support/golden';
import { kdaReference, roundedKdaCase } from '../support/kdaCases';
import { runKdaInParts } from '../support/kdaParts';
import { runKda, type KdaResults } from '../support/run';

// Expected values in bfloat16: test/golden (float64), with the tolerances of its FORMAT.md. Its cases have head dimensions of
// 64 and 128 alone. In float16, which the kernels round to bfloat16, with the same tolerances: the float64 reference on the
// inputs rounded to float16, which differ where they are tiny.

type Golden = ReturnType<typeof loadGolden>;

/** The results that a golden case has, with what is expected. */
function expectedOf({ tensors }: Golden): Partial<Record<keyof KdaResults, Float64Tensor>> {
  const names = Object.entries(GOLDEN_KDA_RESULTS).filter(([, tensor]) => tensors[tensor]);
  return Object.fromEntries(names.map(([result, tensor]) => [result, tensors[tensor]]));
}

/** What is wrong with results; a final state that the case does not have is left out. */
function failures(golden: Golden, actual: Partial<KdaResults>, expected = expectedOf(golden)): string[] {
  const { finalState, ...others } = actual;
  const compared = expected.finalState ? { ...others, finalState } : others;
  return failuresOf(compared as Partial<KdaResults>, expected, (name) =>
    bfloat16Tolerance(golden, GOLDEN_KDA_RESULTS[name]),
  );
}

describeCuda('KDA on golden cases', () => {
  const names = [...goldenNames('kda'), ...goldenNames('kdaChained')];

  describe.each([
    ['recomputing', { saveIntermediates: false }],
    ['saving', { saveIntermediates: true }],
    ['gates in bfloat16', { gateDtype: 'bfloat16' }],
  ] as const)('bfloat16, %s', (_title, options) => {
    test.each(names)('%s', async (name) => {
      const golden = loadGolden(name);
      const actual = await runKda(kdaCaseOf(golden), { dtype: 'bfloat16', device: CUDA, ...options });
      expect(failures(golden, actual)).toEqual([]);
    });
  });

  test.each(names)('float16: %s', async (name) => {
    const golden = loadGolden(name);
    const item = roundedKdaCase(kdaCaseOf(golden), 'float16');
    const { finalState, ...others } = kdaReference(item);
    const expected = golden.tensors.final_state ? { ...others, finalState } : others;
    expect(failures(golden, await runKda(item, { dtype: 'float16', device: CUDA }), expected)).toEqual([]);
  });

  // Each part is one call that starts from the state the part before it ended with; gradients come back through the states.
  test.each(goldenNames('kdaChained'))('in parts: %s', async (name) => {
    const golden = loadGolden(name);
    const actual = await runKdaInParts(kdaCaseOf(golden), golden.options.parts as number[], 'bfloat16', CUDA);
    expect(failures(golden, actual)).toEqual([]);
  });
});
