import { randomAttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { Random } from '../support/random';

const CASES_A_DTYPE = 40;

// Expected values: the float64 reference on the same rounded inputs. New shapes and options each run; the seed is printed.
describe.each(['float32', 'float16', 'bfloat16'] as const)('attention on random %s cases', (dtype) => {
  const random = new Random(`attention ${dtype}`);
  const cases = Array.from({ length: CASES_A_DTYPE }, () => randomAttentionCase(random, 'small'));

  test.each(cases.map((item, n) => [n, item.title, item] as const))('%i: %s', async (_n, _title, item) => {
    expect(await attentionFailures(item, dtype)).toEqual([]);
  });
});
