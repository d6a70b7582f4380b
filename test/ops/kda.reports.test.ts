import { kdaForward, WarpgradRangeError } from '../../lib';
import { kdaFailures } from '../support/check';
import { drawKdaCase } from '../support/kdaCases';
import { kdaReports } from '../support/kdaReports';
import { Random } from '../support/random';
import { toTensor } from '../support/run';

// What broke other implementations, on the CPU. Expected values: the float64 reference, or what a test states.

kdaReports({
  device: 'cpu',
  dtypes: ['float32', 'bfloat16', 'float16'],
  dims: [32, 32],
  failures: kdaFailures,
});

test('fla 1080, 906: T past 65,536', async () => {
  const random = new Random('long');
  const item = drawKdaCase(random, { T: 65_600, heads: [1, 1], dims: [2, 2] }, {}, () => random.between(-0.5, 0));
  expect(await kdaFailures(item, { dtype: 'float32' })).toEqual([]);
});

test('cudnn-frontend 1056, fla 627: a q whose last dimension is not contiguous is refused', () => {
  const { q, k, v, g, beta } = drawKdaCase(new Random('turned'), { B: 2, T: 70, dims: [32, 32] }, {}, () => -1).inputs;
  const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
  const turned = toTensor({ shape: [2, 70, 32, 2], data: q.data }, 'float32').transpose(2, 3);
  expect(() => kdaForward(turned, tk, tv, tg, tb)).toThrow(WarpgradRangeError);
  expect(() => kdaForward(turned, tk, tv, tg, tb)).toThrow(
    'kdaForward: q must have stride 1 in its last dimension, got 2; call contiguous() first',
  );
  expect(() => kdaForward(tq, turned, tv, tg, tb)).toThrow('kdaForward: k must have stride 1');
});

test('GLM-5.3 4: a dtBias of shape [HV] is refused', () => {
  const random = new Random('dtBias');
  const { q, k, v, g, beta } = drawKdaCase(random, { T: 5, dims: [32, 32] }, {}, () => -1).inputs;
  const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
  const dtBias = toTensor(random.tensor([2]), 'float32');
  const call = () => kdaForward(tq, tk, tv, tg, tb, { gate: { lowerBound: -5, dtBias } });
  expect(call).toThrow(WarpgradRangeError);
  expect(call).toThrow('kdaForward: gate.dtBias must have shape [64], got [2]');
});

test.each([
  ['q', [257, 8]],
  ['v', [8, 257]],
] as const)(
  'cuLA 41, fla 639: a head dimension of %s outside the supported ones is refused with their list',
  (name, dims) => {
    const { q, k, v, g, beta } = drawKdaCase(new Random('head dims'), { T: 2, dims }, {}, () => -1).inputs;
    const [tq, tk, tv, tg, tb] = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
    expect(() => kdaForward(tq, tk, tv, tg, tb)).toThrow(
      `kdaForward: the head dimension of ${name} must be 1 to 256, got 257`,
    );
  },
);
