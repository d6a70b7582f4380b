import type { Float64Tensor } from '../../lib/reference/float64';
import { expectClose, type Tolerance } from '../support/compare';
import {
  bfloat16Tolerance,
  float32Tolerance,
  GOLDEN_KDA_RESULTS,
  goldenNames,
  kdaCaseOf,
  loadGolden,
} from '../support/golden';
import { runKdaInParts } from '../support/kdaParts';
import type { KdaResults } from '../support/run';

// Expected values: test/golden, computed in float64 on whole sequences. Here each part is one call that starts from the
// state the part before it ended with; gradients come back through the states, last part first.
describe.each(goldenNames('kdaChained'))('KDA in parts on golden %s', (name) => {
  const golden = loadGolden(name);
  const parts = golden.options.parts as number[];
  const results = (Object.keys(GOLDEN_KDA_RESULTS) as (keyof KdaResults)[]).filter(
    (result) => golden.tensors[GOLDEN_KDA_RESULTS[result]],
  );

  describe.each([
    ['float32', float32Tolerance],
    ['bfloat16', bfloat16Tolerance],
  ] as const)('%s', (dtype, tolerance) => {
    let actual: Partial<Record<keyof KdaResults, Float64Tensor>>;
    beforeAll(async () => void (actual = await runKdaInParts(kdaCaseOf(golden), parts, dtype)));

    test.each(results)('%s', (result) => {
      const tensor = GOLDEN_KDA_RESULTS[result];
      const allowed: Tolerance = tolerance(golden, tensor);
      expectClose(result, actual[result]!, golden.tensors[tensor], allowed);
    });
  });
});
