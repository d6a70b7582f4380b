import { kdaFailures } from '../support/check';
import { CUDA, describeCuda } from '../support/cuda';
import { randomKdaCase } from '../support/kdaCases';
import { Random } from '../support/random';

const CASES_A_DTYPE = 30;
const HEAD_DIMS = [8, 16, 20, 60, 64, 64, 72, 100, 112, 128, 128, 128];

// Expected values: the float64 reference on the same rounded inputs. New shapes and options each run; the seed is printed.
describeCuda('KDA on random cases', () => {
  describe.each(['bfloat16', 'float16'] as const)('%s', (dtype) => {
    const random = new Random(`KDA on cuda ${dtype}`);
    const cases = Array.from({ length: CASES_A_DTYPE }, () => {
      const item = randomKdaCase(random, 'small', HEAD_DIMS);
      const gateDtype = random.pick(['float32', dtype] as const);
      return [item, { dtype, gateDtype, saveIntermediates: random.chance(0.5), device: CUDA }] as const;
    });

    test.each(
      cases.map(([item, run], n) => {
        const words = [item.title, `gates ${run.gateDtype}`, ...(run.saveIntermediates ? ['saving'] : [])];
        return [n, words.join(' '), item, run] as const;
      }),
    )('%i: %s', async (_n, _title, item, run) => {
      expect(await kdaFailures(item, run)).toEqual([]);
    });
  });
});
