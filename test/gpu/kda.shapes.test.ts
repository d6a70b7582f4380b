import { failuresOf } from '../support/compare';
import { describeCuda, Pool } from '../support/cuda';
import { compareKdaShape, titleOfKdaShape } from '../support/kdaShapes';
import type { KdaShape } from '../support/kdaTwins';
import { Random } from '../support/random';
import { kdaToleranceOnGpu } from '../support/kdaTolerance';

// Shapes of KDA, forward and backward, with states before and after. Expected values: the CPU backend in float32 on the same
// rounded inputs, which its own tests compare with the float64 reference.

const pool = new Pool('KDA shapes');

async function failures(shape: KdaShape): Promise<string[]> {
  const { gpu, cpu, naturals } = await compareKdaShape(pool, shape);
  return failuresOf(gpu, cpu, (name) => kdaToleranceOnGpu(name, cpu[name], naturals));
}

/** A test a shape. */
function testShapes(shapes: readonly KdaShape[]): void {
  test.each(shapes.map((shape) => [titleOfKdaShape(shape), shape] as const))('%s', async (_title, shape) => {
    expect(await failures(shape)).toEqual([]);
  });
}

const GATES = ['bounded', 'softplus', 'given'] as const;
const EDGES = [16, 32, 48, 64, 80, 96, 128, 192, 256].flatMap((edge) => [edge - 1, edge, edge + 1]);

describeCuda('lengths around every edge of a tile', () => {
  testShapes(
    [1, 2, 3, ...EDGES].map((T, n) => ({
      ...{ B: 1 + (n % 2), T, heads: [1, 1 + (n % 3)], dims: [128, 128], gate: GATES[n % 3] },
      ...{ dtype: n % 4 === 3 ? 'float16' : 'bfloat16', gateDtype: n % 4 === 1 ? 'bfloat16' : 'float32' },
      ...{ stateLayout: n % 2 ? 'vk' : 'kv', saveIntermediates: n % 4 < 2, qkL2Norm: n % 5 !== 0 },
    })),
  );
});

describeCuda('head dimensions', () => {
  const dims = [[64, 64], [128, 64], [64, 128], [16, 16], [24, 40], [48, 112], [112, 16], [80, 96], [60, 60], [100, 100], [20, 33], [65, 127], [7, 3]] as const; // prettier-ignore
  testShapes(
    dims.flatMap((pair, n) =>
      [false, true].map((saveIntermediates) => ({
        ...({ B: 2, T: 150, heads: [1, 2], dims: pair, gate: GATES[n % 3], saveIntermediates } as const),
        ...({ stateLayout: n % 2 ? 'vk' : 'kv', qkL2Norm: n % 4 !== 3, allowNegEigval: n % 4 === 1 } as const),
      })),
    ),
  );
});

// Keys or values above 128, whose gradients have kernels of their own.
describeCuda('wide heads', () => {
  const dims = [[128, 256], [256, 256], [256, 128], [192, 256], [64, 256], [256, 64], [250, 129], [129, 20]] as const; // prettier-ignore
  testShapes(
    dims.flatMap((pair, n) =>
      [false, true].map((saveIntermediates) => ({
        ...({ B: 2, T: 150, heads: [1, 2], dims: pair, gate: GATES[(n + 1) % 3], saveIntermediates } as const),
        ...({ gateDtype: n % 2 ? 'float32' : 'bfloat16', stateLayout: n % 2 ? 'vk' : 'kv' } as const),
        ...({ qkL2Norm: n % 4 !== 3, allowNegEigval: n % 4 === 1 } as const),
      })),
    ),
  );
  testShapes([
    { T: 190, heads: [2, 2], dims: [128, 129], gate: 'given', cuSeqlens: [0, 64, 65, 65, 180] },
    {
      T: 400,
      heads: [2, 4],
      dims: [256, 256],
      gate: 'softplus',
      cuSeqlens: [0, 64, 65, 65, 300, 390],
      stateLayout: 'vk',
    },
    { T: 257, heads: [1, 1], dims: [256, 256], gate: 'given', decay: (value) => (value > 0 ? -1000 : value) },
    { T: 70, heads: [70, 140], dims: [256, 256], saveIntermediates: true },
    { T: 1, heads: [1, 1], dims: [256, 256], gate: 'given' },
  ]);
});

describeCuda('numbers of heads', () => {
  const heads = [[3, 3], [5, 5], [7, 21], [17, 17], [33, 66], [67, 67], [128, 128], [8, 64], [1, 24]] as const; // prettier-ignore
  testShapes(heads.map((pair) => ({ T: 66, heads: pair, dims: [64, 64] })));
  testShapes([{ T: 34, heads: [67, 67], dims: [128, 128], gate: 'softplus' }]);
});

describeCuda('packed sequences', () => {
  const random = new Random('packed KDA');
  const drawn = Array.from({ length: 12 }, (_, n): KdaShape => {
    const cuSeqlens = random.cuSeqlens(random.pick([1, 3, 8, 20]), random.pick([5, 70, 150]));
    return {
      ...{ T: Math.max(1, cuSeqlens.at(-1)! + random.integer(0, 70)), heads: [2, random.pick([2, 4])], cuSeqlens },
      ...{ dims: random.pick([[128, 128], [64, 64], [128, 64]] as const), gate: GATES[n % 3] }, // prettier-ignore
      ...{ stateLayout: random.pick(['kv', 'vk'] as const), saveIntermediates: n % 2 === 0 },
    };
  });
  testShapes([
    ...drawn,
    { T: 1024, heads: [2, 2], dims: [128, 128], cuSeqlens: [0, 650, 823, 824, 824, 1024], stateLayout: 'vk' },
    { T: 300, heads: [2, 2], dims: [64, 64], cuSeqlens: Array.from({ length: 151 }, (_, n) => 2 * n) },
    { T: 100, heads: [1, 1], dims: [128, 128], cuSeqlens: [0, 0, 0] }, // nothing but rows past the end
  ]);
});
