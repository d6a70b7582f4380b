import { attentionFailures } from '../support/check';
import { failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import {
  attentionCaseOf,
  bfloat16Tolerance,
  GOLDEN_ATTENTION_RESULTS,
  goldenNames,
  loadGolden,
} from '../support/golden';
import { runAttention, type AttentionResults } from '../support/run';

// Expected values in bfloat16: test/golden (float64), with the tolerances of its FORMAT.md. In float16, for which it has
// none: the float64 reference on the inputs rounded to float16.

describeCuda('attention on golden cases', () => {
  test.each(goldenNames('attention'))('%s, bfloat16', async (name) => {
    const golden = loadGolden(name);
    const actual = await runAttention(attentionCaseOf(golden), 'bfloat16', CUDA);
    const names = Object.entries(GOLDEN_ATTENTION_RESULTS).filter(([, tensor]) => golden.tensors[tensor]);
    const expected = Object.fromEntries(names.map(([result, tensor]) => [result, golden.tensors[tensor]]));
    const tolerance = (result: keyof AttentionResults) => bfloat16Tolerance(golden, GOLDEN_ATTENTION_RESULTS[result]);
    expect(failuresOf(actual, expected, tolerance)).toEqual([]);
  });

  test.each(goldenNames('attention'))('%s, float16', async (name) => {
    expect(await attentionFailures(attentionCaseOf(loadGolden(name)), 'float16', CUDA)).toEqual([]);
  });
});
