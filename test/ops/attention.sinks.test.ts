import { attentionReference, drawAttentionCase, roundedAttentionCase } from '../support/attentionCases';
import { failuresOf } from '../support/compare';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import { runAttention } from '../support/run';
import { attentionNaturals, randomTolerance } from '../support/tolerance';

// Sinks that take all of the weight or none, up to the ends of float32: times log2 e they are more than it holds. Expected
// values: the float64 reference.

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];
const LARGEST = 2 ** 128 - 2 ** 104;

describe.each([-Infinity, -LARGEST, -2.4e38, -1e30, 1e30, 2.4e38, LARGEST])('a sink of %d', (logit) => {
  test.each([
    ['rows with and without keys', 40, 24, { causal: true }],
    ['one query, whose heads are rows of a block', 1, 30, {}],
    ['keys in parts', 2, 2200, { causal: true }],
    ['a window and a softcap', 50, 40, { window: [7, 3] as const, softcap: 20 }],
  ])('%s', async (label, rows, keys, options) => {
    for (const dtype of DTYPES) {
      const random = new Random(`sinks ${logit} ${label} ${dtype}`);
      const sink = { shape: [2], data: Float64Array.of(logit, 0.5) };
      const drawn = drawAttentionCase(random, [1, rows, 2, 8], [1, keys, 1, 8], { ...options, sink });
      const item = roundedAttentionCase(drawn, dtype);
      const { lse, ...actual } = await runAttention(item, dtype);
      const { lse: expectedLse, ...expected } = attentionReference(item);
      const naturals: Partial<Record<keyof typeof actual, number>> = attentionNaturals(item, dtype);
      const tolerance = (name: keyof typeof actual) => randomTolerance(dtype, expected[name]!, naturals[name]);
      expect(failuresOf(actual, expected, tolerance)).toEqual([]);
      // Each for itself: one head's are as large as its sink.
      const wrong = [...lse.data].filter((value, at) => {
        const right = expectedLse.data[at];
        return value !== right && !(Math.abs(value - right) <= 1e-5 * Math.max(1, Math.abs(right)));
      });
      expect(wrong).toEqual([]);
    }
  });
});
