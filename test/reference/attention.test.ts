import { attentionBackwardReference, attentionForwardReference } from '../../lib/reference/attention';
import { expectClose, maxAbs } from '../support/compare';
import { randomAttentionCase } from '../support/attentionCases';
import { expectGradientByDifferences } from '../support/differences';
import { goldenAttentionOptions, goldenNames, loadGolden } from '../support/golden';
import { Random } from '../support/random';

// Expected values: test/golden, computed in float64 by other code and rounded once to float32.
describe.each(goldenNames('attention'))('attention reference on golden %s', (name) => {
  const golden = loadGolden(name);
  const { q, k, v, do: dOut } = golden.tensors as Record<string, NonNullable<(typeof golden.tensors)[string]>>;
  const options = goldenAttentionOptions(golden);
  const { out, lse } = attentionForwardReference(q!, k!, v!, options);
  const { dq, dk, dv, dSink } = attentionBackwardReference(dOut!, q!, k!, v!, options);
  const results = { o: out, lse, dq, dk, dv, ...(dSink && { dsink: dSink }) };

  test.each(Object.keys(results) as (keyof typeof results)[])('%s', (tensor) => {
    const expected = golden.tensors[tensor]!;
    const natural = golden.stats.natural?.[tensor] ?? 0;
    // Half a unit in the last place of the float32 rounding, and float64 rounding of terms that cancel.
    expectClose(tensor, results[tensor]!, expected, { maxAbs: 2 ** -24 * maxAbs(expected.data) + 1e-14 * natural });
  });
});

// Expected values: central differences of the reference's own forward.
describe('attention reference gradients are the derivatives of its forward', () => {
  const cases = Array.from({ length: 12 }, (_, n) => randomAttentionCase(new Random(`attention derivative ${n}`), 'tiny'));
  describe.each(cases.map((item) => [item.title, item] as const))('%s', (_title, { inputs, dOut, options }) => {
    const { q, k, v } = inputs;
    const { dq, dk, dv, dSink } = attentionBackwardReference(dOut, q, k, v, options);
    const loss = () => {
      const { out } = attentionForwardReference(q, k, v, options);
      return out.data.reduce((sum, value, n) => sum + value * dOut.data[n]!, 0);
    };
    const gradients = { dq: [q, dq], dk: [k, dk], dv: [v, dv], ...(dSink && { dSink: [options.sink!, dSink] }) } as const;
    test.each(Object.keys(gradients) as (keyof typeof gradients)[])('%s', (name) => {
      const [input, gradient] = gradients[name]!;
      expectGradientByDifferences(name, loss, input, gradient, 1e-8);
    });
  });
});
