import { expectClose } from '../support/compare';
import {
  bfloat16Tolerance,
  float32Tolerance,
  GOLDEN_KDA_RESULTS,
  goldenNames,
  kdaCaseOf,
  loadGolden,
} from '../support/golden';
import { kdaReference, roundedKdaCase } from '../support/kdaCases';
import { runKda, type KdaResults } from '../support/run';
import { kdaNaturals, kdaTolerance, type KdaNaturals } from '../support/kdaTolerance';

// Expected values: test/golden (float64), with the tolerances of its FORMAT.md. Its inputs are exact in bfloat16.
describe.each([...goldenNames('kda'), ...goldenNames('kdaChained')])('KDA on golden %s', (name) => {
  const golden = loadGolden(name);
  const item = kdaCaseOf(golden);
  const results = (Object.keys(GOLDEN_KDA_RESULTS) as (keyof KdaResults)[]).filter(
    (result) => golden.tensors[GOLDEN_KDA_RESULTS[result]],
  );

  describe.each([
    ['float32, recomputing', { dtype: 'float32' }, float32Tolerance],
    ['float32, saving', { dtype: 'float32', saveIntermediates: true }, float32Tolerance],
    ['bfloat16', { dtype: 'bfloat16' }, bfloat16Tolerance],
    ['bfloat16 with its gates', { dtype: 'bfloat16', gateDtype: 'bfloat16' }, bfloat16Tolerance],
  ] as const)('%s', (_title, run, tolerance) => {
    let actual: KdaResults;
    beforeAll(async () => void (actual = await runKda(item, run)));

    test.each(results)('%s', (result) => {
      const tensor = GOLDEN_KDA_RESULTS[result];
      expectClose(result, actual[result], golden.tensors[tensor], tolerance(golden, tensor));
    });
  });

  // Expected values: the float64 reference on the inputs rounded to float16; the golden data have no float16 tolerance.
  describe('float16', () => {
    const float16Item = roundedKdaCase(item, 'float16');
    const expected = kdaReference(float16Item);
    let naturals: KdaNaturals;
    let actual: KdaResults;
    beforeAll(async () => {
      naturals = kdaNaturals(float16Item);
      actual = await runKda(float16Item, { dtype: 'float16' });
    });

    test.each(results)('%s', (result) => {
      expectClose(
        result,
        actual[result],
        expected[result]!,
        kdaTolerance('float16', result, expected[result]!, naturals),
      );
    });
  });
});
