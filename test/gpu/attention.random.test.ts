import { attentionForwardReference } from '../../lib/reference/attention';
import { randomAttentionCase, roundedAttentionCase } from '../support/attentionCases';
import { failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { Random } from '../support/random';
import { runAttentionForward } from '../support/run';
import { randomTolerance } from '../support/tolerance';

const CASES_A_DTYPE = 60;
const HEAD_DIMS = Array.from({ length: 32 }, (_, n) => 8 * (n + 1));

// Expected values: the float64 reference on the same rounded inputs. New shapes and options each run; the seed is printed.
describeCuda('attention on random cases', () => {
  describe.each(['float16', 'bfloat16'] as const)('%s', (dtype) => {
    const random = new Random(`attention on cuda ${dtype}`);
    const cases = Array.from({ length: CASES_A_DTYPE }, () => randomAttentionCase(random, 'small', HEAD_DIMS));

    test.each(cases.map((item, n) => [n, item.title, item] as const))('%i: %s', async (_n, _title, drawn) => {
      const item = roundedAttentionCase(drawn, dtype);
      const { q, k, v } = item.inputs;
      const actual = await runAttentionForward(item, dtype, CUDA);
      const expected = attentionForwardReference(q, k, v, item.options);
      expect(
        failuresOf(actual, expected, (name) => randomTolerance(name === 'lse' ? 'float32' : dtype, expected[name])),
      ).toEqual([]);
    });
  });
});
