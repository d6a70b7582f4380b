import { kdaFailures } from '../support/check';
import { randomKdaCase } from '../support/kdaCases';
import { Random } from '../support/random';

const CASES_A_DTYPE = 40;

// Expected values: the float64 reference on the same rounded inputs. New shapes and options each run; the seed is printed.
describe.each(['float32', 'float16', 'bfloat16'] as const)('KDA on random %s cases', (dtype) => {
  const random = new Random(`KDA ${dtype}`);
  const cases = Array.from({ length: CASES_A_DTYPE }, () => {
    const item = randomKdaCase(random, 'small');
    const gateDtype = random.pick(['float32', dtype] as const);
    const saveIntermediates = random.chance(0.5);
    return { item, run: { dtype, gateDtype, saveIntermediates } };
  });

  test.each(
    cases.map(({ item, run }, n) => {
      const words = [run.gateDtype === dtype ? '' : ' float32 gates', run.saveIntermediates ? ' saving' : ''];
      return [n, item.title + words.join(''), item, run] as const;
    }),
  )('%i: %s', async (_n, _title, item, run) => {
    expect(await kdaFailures(item, run)).toEqual([]);
  });
});
