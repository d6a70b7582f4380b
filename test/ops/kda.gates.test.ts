import { expectClose } from '../support/compare';
import { kdaReference, roundedKdaCase, type KdaCase } from '../support/kdaCases';
import { Random } from '../support/random';
import { runKda, type KdaResults } from '../support/run';
import { kdaNaturals, kdaTolerance } from '../support/kdaTolerance';

// Gates so steep that exp(A_log) is near the largest float or beyond it. Expected values: the float64 reference, as a float32
// holds them: what is larger is infinite.

const LARGEST = 2 ** 128 - 2 ** 104;
const [T, K] = [70, 8];
const STEEP = [80, 88, 89, 100, 1000];

function drawCase(random: Random, aLog: number, x: (at: number) => number, lowerBound?: number): KdaCase {
  const tensor = (...shape: number[]) => random.tensor([1, T, 2, ...shape]);
  const gate = {
    aLog: { shape: [2], data: Float64Array.of(aLog, 0) },
    dtBias: { shape: [2, K], data: new Float64Array(2 * K) },
  };
  const g = tensor(K);
  g.data.forEach((_, at) => (g.data[at] = x(at)));
  return roundedKdaCase(
    {
      title: '',
      inputs: { q: tensor(K), k: tensor(K), v: tensor(4), g, beta: random.tensor([1, T, 2], () => random.uniform()) },
      dOut: tensor(4),
      options: { qkL2Norm: true, gate: { ...gate, ...(lowerBound !== undefined && { lowerBound }) } },
    },
    'float32',
  );
}

async function expectAsReference(item: KdaCase): Promise<KdaResults> {
  const [actual, expected] = [await runKda(item, { dtype: 'float32' }), kdaReference(item)];
  const naturals = kdaNaturals(item);
  for (const [name, { shape, data }] of Object.entries(expected) as [keyof KdaResults, KdaResults['out']][]) {
    const float32 = { shape, data: Float64Array.from(data, Math.fround) };
    const natural = { largest: Math.min(naturals[name]?.largest ?? 0, LARGEST), rms: 0 }; // or an infinity is any number
    const { maxAbs } = kdaTolerance('float32', name, float32, { [name]: natural });
    expectClose(name, actual[name], float32, { maxAbs });
  }
  return actual;
}

describe.each(STEEP)('A_log %d', (aLog) => {
  test('bounded: the bound where x is above 0, nothing below, the half of it at 0', async () => {
    const random = new Random(`bounded ${aLog}`, 1); // not another one each run: the rounding of dg times exp(A_log) is large
    // At 0 the gradient is about exp(A_log), so a channel's sums hold one such token.
    const zeros = Array.from({ length: 2 * K }, () => random.integer(1, T - 1));
    const x = (at: number) =>
      zeros[at % (2 * K)] === Math.floor(at / (2 * K)) ? 0 : random.pick([-1e-30, -1, -1000, 1e-30, 1, 1000]);
    const item = drawCase(random, aLog, x, -5);
    const { dg, dALog } = await expectAsReference(item);
    const steep = [...dg.data.entries()].filter(([at]) => Math.floor(at / K) % 2 === 0);
    for (const [at, dx] of steep) if (item.inputs.g.data[at] !== 0) expect(Math.abs(dx)).toBe(0);
    expect(dALog.data[0]).toBe(0);
    expect(steep.some(([, dx]) => Math.abs(dx) > 1e30)).toBe(true);
  });

  test('softplus: no decay or a whole one', async () => {
    const random = new Random(`softplus ${aLog}`);
    await expectAsReference(drawCase(random, aLog, () => random.pick([-30, -1, 0, 1, 1000])));
  });
});

// exp(x) has no digits as a float, exp(A_log) none beyond it, and their product is of common size.
test.each([70, 80, 88, 89, 100, 300])('softplus with A_log %d and x as far below 0', async (aLog) => {
  const random = new Random(`softplus below ${aLog}`);
  await expectAsReference(drawCase(random, aLog, () => random.between(-3, 3) - aLog));
});
