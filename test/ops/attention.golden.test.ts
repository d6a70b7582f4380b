import { attentionReference, roundedAttentionCase } from '../support/attentionCases';
import { expectClose } from '../support/compare';
import {
  attentionCaseOf,
  bfloat16Tolerance,
  float32Tolerance,
  GOLDEN_ATTENTION_RESULTS,
  goldenNames,
  loadGolden,
} from '../support/golden';
import { runAttention, type AttentionResults } from '../support/run';
import { attentionNaturals, randomTolerance } from '../support/tolerance';

// Expected values: test/golden (float64), with the tolerances of its FORMAT.md. Its inputs are exact in bfloat16.
describe.each(goldenNames('attention'))('attention on golden %s', (name) => {
  const golden = loadGolden(name);
  const item = attentionCaseOf(golden);
  const results = (Object.keys(GOLDEN_ATTENTION_RESULTS) as (keyof AttentionResults)[]).filter(
    (result) => golden.tensors[GOLDEN_ATTENTION_RESULTS[result]],
  );

  describe.each([
    ['float32', float32Tolerance],
    ['bfloat16', bfloat16Tolerance],
  ] as const)('%s', (dtype, tolerance) => {
    let actual: AttentionResults;
    beforeAll(async () => void (actual = await runAttention(item, dtype)));

    test.each(results)('%s', (result) => {
      const tensor = GOLDEN_ATTENTION_RESULTS[result];
      expectClose(result, actual[result], golden.tensors[tensor], tolerance(golden, tensor));
    });
  });

  // Expected values: the float64 reference on the inputs rounded to float16; the golden data have no float16 tolerance.
  describe('float16', () => {
    const float16Item = roundedAttentionCase(item, 'float16');
    const expected = attentionReference(float16Item);
    let naturals: Partial<Record<keyof AttentionResults, number>>;
    let actual: AttentionResults;
    beforeAll(async () => {
      naturals = attentionNaturals(float16Item, 'float16');
      actual = await runAttention(float16Item, 'float16');
    });

    test.each(results)('%s', (result) => {
      const tolerance = randomTolerance(result === 'lse' ? 'float32' : 'float16', expected[result]!, naturals[result]);
      expectClose(result, actual[result], expected[result]!, tolerance);
    });
  });
});
