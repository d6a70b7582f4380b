import {
  attentionInputTensors,
  attentionLoss,
  randomAttentionCase,
  roundedAttentionCase,
} from '../support/attentionCases';
import { differenceFailures } from '../support/differences';
import { kdaInputTensors, kdaLoss, randomKdaCase, roundedKdaCase } from '../support/kdaCases';
import { Random } from '../support/random';
import { runAttention, runKda } from '../support/run';

// Expected values: central differences of the float64 reference's forward. The library computes its gradients in float32,
// so what is allowed is float32 rounding of sums of a few dozen terms.
const TOLERANCE = 1e-5;
const CASES = 30;

describe('float32 attention gradients against central differences', () => {
  const random = new Random('attention gradients');
  const cases = Array.from({ length: CASES }, () =>
    roundedAttentionCase(randomAttentionCase(random, 'tiny'), 'float32'),
  );

  test.each(cases.map((item, n) => [n, item.title, item] as const))('%i: %s', async (_n, _title, item) => {
    const results = await runAttention(item, 'float32');
    const failures = attentionInputTensors(item).flatMap(([input, name]) =>
      differenceFailures(name, () => attentionLoss(item), input, results[name], TOLERANCE),
    );
    expect(failures).toEqual([]);
  });
});

describe('float32 KDA gradients against central differences', () => {
  const random = new Random('KDA gradients');
  const cases = Array.from({ length: CASES }, () => roundedKdaCase(randomKdaCase(random, 'tiny'), 'float32'));

  test.each(cases.map((item, n) => [n, item.title, item] as const))('%i: %s', async (n, _title, item) => {
    const results = await runKda(item, { dtype: 'float32', saveIntermediates: n % 2 === 1 });
    const failures = kdaInputTensors(item).flatMap(([input, name]) =>
      differenceFailures(name, () => kdaLoss(item), input, results[name], TOLERANCE),
    );
    expect(failures).toEqual([]);
  });
});
