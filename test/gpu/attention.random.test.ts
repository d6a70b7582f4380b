import { randomAttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { CUDA, describeCuda } from '../support/cuda';
import { Random } from '../support/random';

const CASES_A_DTYPE = 60;
const HEAD_DIMS = Array.from({ length: 32 }, (_, n) => 8 * (n + 1));

// Expected values: the float64 reference on the same rounded inputs. New shapes and options each run; the seed is printed.
// Every other case takes the deterministic backward.
describeCuda('attention on random cases', () => {
  describe.each(['float16', 'bfloat16'] as const)('%s', (dtype) => {
    const random = new Random(`attention on cuda ${dtype}`);
    const cases = Array.from({ length: CASES_A_DTYPE }, () => randomAttentionCase(random, 'small', HEAD_DIMS));

    test.each(cases.map((item, n) => [n, item.title, item] as const))('%i: %s', async (n, _title, item) => {
      expect(await attentionFailures(item, dtype, CUDA, n % 2 === 1)).toEqual([]);
    });
  });
});
