import { failuresOf } from '../support/compare';
import { describeCuda, Pool } from '../support/cuda';
import { PUBLIC_RMS_RATIO } from '../support/kdaReports';
import { compareKdaShape, titleOfKdaShape } from '../support/kdaShapes';
import { kdaToleranceOnGpu } from '../support/kdaTolerance';
import type { KdaShape } from '../support/kdaTwins';
import type { KdaResults } from '../support/run';

// Expected values: the CPU backend in float32 on the same rounded inputs, which its own tests compare with the float64 reference.

const pool = new Pool('KDA public shapes');

// flash-linear-attention's and FlashKDA's own cases, with fewer heads; and long sequences. Allowed: what the former's
// tests allow, which is less than 0.006 for FlashKDA's out.
describeCuda("the public tests' shapes", () => {
  const half = (value: number) => (value > 0 ? -1000 : value);
  const strong = (value: number) => 10 * Math.min(-0.01, value - 1);
  const weak = (value: number) => -0.001 * Math.abs(value);
  const packed = (H: number, D: number, ...cuSeqlens: number[]): KdaShape => ({
    ...{ T: cuSeqlens.at(-1)!, heads: [H, H], dims: [D, D], cuSeqlens },
  });
  const shapes: KdaShape[] = [
    { T: 63, heads: [1, 1], dims: [64, 64] },
    { B: 2, T: 500, heads: [3, 3], dims: [60, 60], gate: 'given' },
    { B: 2, T: 1000, heads: [3, 3], dims: [64, 64], gate: 'given', decay: half },
    { B: 1, T: 1024, heads: [4, 4], dims: [100, 100], gate: 'given' },
    { B: 2, T: 1024, heads: [4, 4], dims: [128, 128], gate: 'softplus', qkL2Norm: false },
    { B: 2, T: 1500, heads: [2, 2], dims: [128, 128], gate: 'given', decay: strong },
    { B: 2, T: 1024, heads: [2, 4], dims: [64, 64] },
    { B: 2, T: 1024, heads: [2, 8], dims: [64, 64], gate: 'softplus' },
    { B: 2, T: 1024, heads: [2, 4], dims: [128, 128], saveIntermediates: true },
    { B: 2, T: 160, heads: [2, 4], dims: [64, 64] },
    packed(4, 60, 0, 15),
    packed(4, 60, 0, 31, 96, 160),
    packed(4, 64, 0, 256, 500, 1000),
    packed(4, 100, 0, 15, 100, 300, 1200, 2000),
    packed(4, 128, 0, 256, 500, 1000),
    packed(4, 128, 0, 100, 300, 1200, 2000),
    packed(4, 128, 0, 101, 303, 1205, 3007, 4096),
    packed(4, 256, 0, 100, 300, 1200, 3000, 4096),
    { T: 5000, heads: [2, 2], dims: [128, 128] },
    { T: 70_000, heads: [1, 1], dims: [64, 64] }, // fla 906: past 65,536
    { T: 4097, heads: [1, 1], dims: [128, 128], gate: 'given', decay: weak },
    { T: 4096, heads: [1, 2], dims: [64, 64], gate: 'softplus', saveIntermediates: true },
  ];
  test.each(shapes.map((shape) => [titleOfKdaShape(shape), shape] as const))('%s', async (_title, shape) => {
    const { gpu, cpu, naturals } = await compareKdaShape(pool, shape);
    // The sum of A_log's gradient cancels, see FORMAT.md; with a few heads a ratio of its few values says nothing.
    const tolerance = (name: keyof KdaResults) =>
      name === 'dALog' ? kdaToleranceOnGpu(name, cpu[name], naturals) : { rmsRatio: PUBLIC_RMS_RATIO[name] };
    expect(failuresOf(gpu, cpu, tolerance)).toEqual([]);
  });
});
