import { attentionBackwardReference } from '../../lib/reference/attention';
import { float64, zeros64 } from '../../lib/reference/float64';
import { expectClose, maxAbs } from '../support/compare';
import {
  attentionInputTensors,
  attentionLoss,
  attentionReference,
  randomAttentionCase,
} from '../support/attentionCases';
import { differenceFailures } from '../support/differences';
import { attentionCaseOf, GOLDEN_ATTENTION_RESULTS, goldenNames, loadGolden } from '../support/golden';
import { Random } from '../support/random';

// Expected values: test/golden, computed in float64 by other code and rounded once to float32.
describe.each(goldenNames('attention'))('attention reference on golden %s', (name) => {
  const golden = loadGolden(name);
  const results = attentionReference(attentionCaseOf(golden));
  const names = Object.keys(results) as (keyof typeof results)[];

  test.each(names)('%s', (result) => {
    const tensor = GOLDEN_ATTENTION_RESULTS[result];
    const expected = golden.tensors[tensor];
    const natural = golden.stats.natural?.[tensor] ?? 0;
    // Half a unit in the last place of the float32 rounding, and float64 rounding of terms that cancel.
    expectClose(result, results[result]!, expected, { maxAbs: 2 ** -24 * maxAbs(expected.data) + 1e-14 * natural });
  });
});

// Expected values: central differences of the reference's own forward.
describe('attention reference gradients are the derivatives of its forward', () => {
  const cases = Array.from({ length: 12 }, (_, n) =>
    randomAttentionCase(new Random(`attention derivative ${n}`), 'tiny'),
  );
  test.each(cases.map((item) => [item.title, item] as const))('%s', (_title, item) => {
    const gradients = attentionReference(item);
    const failures = attentionInputTensors(item).flatMap(([input, name]) =>
      differenceFailures(name, () => attentionLoss(item), input, gradients[name]!, 1e-7),
    );
    expect(failures).toEqual([]);
  });
});

// By docs/attention.md: a row without keys has gradients of zero, also where the sink is turned off.
test('a sink of -Infinity gets no gradient from rows without keys', () => {
  const [q, k, dOut] = [float64([1, 2, 3], [1, 3, 1, 1]), float64([1, 2], [1, 2, 1, 1]), zeros64([1, 3, 1, 1])];
  const options = { causal: true, sink: float64([-Infinity], [1]) };
  dOut.data.fill(1);
  const { dSink } = attentionBackwardReference(dOut, q, k, k, options);
  expect(dSink!.data[0]).toBeCloseTo(0, 12);
});
