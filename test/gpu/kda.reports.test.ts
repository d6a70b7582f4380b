import type { Float64Tensor } from '../../lib/reference/float64';
import { kdaFailuresBesideCpu } from '../support/check';
import { CUDA, describeCuda } from '../support/cuda';
import { drawKdaCase, fullKdaCase, type KdaCase } from '../support/kdaCases';
import { kdaReports } from '../support/kdaReports';
import { Random } from '../support/random';

// Expected values: the CPU backend in float32 on the same rounded inputs, which its own tests compare with the float64
// reference.

describeCuda('KDA, what broke others', () => {
  kdaReports({
    device: CUDA,
    dtypes: ['bfloat16', 'float16'],
    dims: [128, 128],
    failures: kdaFailuresBesideCpu,
  });
});

describeCuda('KDA, decays and β at their limits', () => {
  const failures = (item: KdaCase) => kdaFailuresBesideCpu(item, { dtype: 'bfloat16', device: CUDA });

  test.each([-0.01, -1, -2.5, -3, -5, -20, -1000, -Infinity, 0])('every log decay %d', async (g) => {
    const random = new Random(`decay ${g}`);
    expect(await failures(drawKdaCase(random, { T: 150, heads: [1, 2], dims: [128, 128] }, {}, () => g))).toEqual([]);
  });

  // The gate's input is far in saturation, so that the log decay is the bound, or nothing.
  test.each([
    [-5, 12],
    [-5, -12],
    [-2.5, 12],
    [-20, 12],
    [-1000, 5],
  ])('the bounded gate of %d at %d', async (lowerBound, x) => {
    const random = new Random(`bounded ${lowerBound} ${x}`);
    const gate = { lowerBound, aLog: random.tensor([2], () => random.between(-0.2, 0.2)) };
    const draw = () => x * random.between(0.8, 1.2);
    const sizes = { T: 150, heads: [1, 2], dims: [128, 128] } as const;
    expect(await failures(drawKdaCase(random, sizes, { gate }, draw))).toEqual([]);
  });

  // exp(A_log) is more than a float32 holds; at 0 the bounded gate's gradient would be, too.
  test.each([
    ['bounded', 89],
    ['bounded', 1000],
    ['softplus', 89],
    ['softplus', 1000],
  ])('the %s gate with A_log %d', async (kind, aLog) => {
    const random = new Random(`${kind} gate ${aLog}`);
    const logs = { shape: [2], data: Float64Array.of(aLog, 0) };
    const gate = { aLog: logs, ...(kind === 'bounded' && { lowerBound: -5 }) };
    const draw = () => random.pick([-1, 1]) * random.between(0.5, 3);
    const sizes = { T: 150, heads: [1, 2], dims: [128, 128] } as const;
    expect(await failures(drawKdaCase(random, sizes, { gate }, draw))).toEqual([]);
  });

  test.each([
    ['0 or 1', (random: Random) => random.pick([0, 1])],
    ['0', () => 0],
    ['1', () => 1],
    ['near 2', (random: Random) => random.between(1.95, 2)],
  ])('β %s', async (_title, draw) => {
    const random = new Random(`beta ${_title}`);
    const item = drawKdaCase(random, { T: 150, heads: [1, 2], dims: [128, 128] }, {}, () => random.between(-1, 0));
    item.inputs.beta.data.forEach((_, at, beta) => (beta[at] = draw(random)));
    expect(await failures(item)).toEqual([]);
  });

  test('β near 2 with duplicate keys that decay', async () => {
    const random = new Random('duplicate keys near 2');
    const item = drawKdaCase(random, { T: 150, heads: [1, 1], dims: [128, 128] }, {}, () => random.between(-1, -0.2));
    item.inputs.k.data.forEach((_, at, k) => (k[at] = k[at % 128]!));
    item.inputs.beta.data.fill(1.98);
    expect(await failures(item)).toEqual([]);
  });

  test('a loss on the final state alone, and one on out alone', async () => {
    const drawn = fullKdaCase(new Random('one loss'), { T: 150, dims: [128, 128] });
    const zeros = ({ shape, data }: Float64Tensor) => ({ shape, data: new Float64Array(data.length) });
    expect(await failures({ ...drawn, dOut: zeros(drawn.dOut) })).toEqual([]);
    const { dFinalState: _, ...outAlone } = drawn;
    expect(await failures(outAlone)).toEqual([]);
  });

  // Without the norm keys may be of any ordinary size; β falls with it, so that the recurrence does not grow.
  test.each([1e-3, 30, 1000])('q and k of size %d without the L2 norm', async (size) => {
    const random = new Random(`size ${size}`);
    const sizes = { T: 150, heads: [1, 2], dims: [128, 128] } as const;
    const drawn = drawKdaCase(random, sizes, { qkL2Norm: false }, () => random.between(-1, 0));
    const sized = ({ shape, data }: Float64Tensor) => ({ shape, data: data.map((x) => (size * x) / Math.sqrt(128)) });
    const { q, k, beta } = drawn.inputs;
    const small = { shape: beta.shape, data: beta.data.map((x) => x / Math.max(1, size * size)) };
    const inputs = { ...drawn.inputs, q: sized(q), k: sized(k), beta: small };
    expect(await failures({ ...drawn, inputs })).toEqual([]);
  });
});
