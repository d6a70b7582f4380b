import { attentionReference, roundedAttentionCase } from '../support/attentionCases';
import { failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { attentionCaseOf, bfloat16Tolerance, goldenNames, loadGolden } from '../support/golden';
import { runAttentionForward } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// Expected values in bfloat16: test/golden (float64), with the tolerances of its FORMAT.md. In float16, for which it has
// none: the float64 reference on the inputs rounded to float16.

describeCuda('attention on golden cases', () => {
  test.each(goldenNames('attention'))('%s, bfloat16', async (name) => {
    const golden = loadGolden(name);
    const actual = await runAttentionForward(attentionCaseOf(golden), 'bfloat16', CUDA);
    const { o: out, lse } = golden.tensors;
    const named = { out: 'o', lse: 'lse' } as const;
    expect(failuresOf(actual, { out, lse }, (result) => bfloat16Tolerance(golden, named[result]))).toEqual([]);
  });

  test.each(goldenNames('attention'))('%s, float16', async (name) => {
    const item = roundedAttentionCase(attentionCaseOf(loadGolden(name)), 'float16');
    const actual = await runAttentionForward(item, 'float16', CUDA);
    const { out, lse } = attentionReference(item);
    const tolerance = { out: randomTolerance('float16', out), lse: randomTolerance('float32', lse) };
    expect(failuresOf(actual, { out, lse }, (result) => tolerance[result])).toEqual([]);
  });
});
