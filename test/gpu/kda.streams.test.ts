import { kdaForward, memoryStats, Stream, Tensor } from '../../lib';
import { expectBitwiseEqual } from '../support/compare';
import { CUDA, describeCuda, freeBytes, keepBusy, Pool, valuesOf } from '../support/cuda';
import { disposeKdaTwins, drawKdaTwins, runKdaTwins, type KdaShape } from '../support/kdaTwins';

jest.setTimeout(150_000);

// When, where and in which memory KDA runs. Expected values: what the same call gives by itself, or what a test states.

const pool = new Pool('KDA streams');

const CASES: readonly [string, KdaShape][] = [
  ['dense, K 128', { T: 700, heads: [4, 4], dims: [128, 128] }],
  ['grouped, K 64, softplus', { T: 700, heads: [2, 4], dims: [64, 64], gate: 'softplus', saveIntermediates: true }],
  [
    'packed, K 100, V 60',
    { T: 600, heads: [2, 2], dims: [100, 60], cuSeqlens: [0, 300, 300, 411, 590], gate: 'given' },
  ],
];

/** Bits of all results, which are disposed of. */
async function bitsOf(results: Record<string, Tensor>): Promise<Record<string, ArrayLike<number>>> {
  const entries = await Promise.all(
    Object.entries(results).map(async ([name, tensor]) => [name, await tensor.data()] as const),
  );
  for (const tensor of Object.values(results)) tensor.dispose();
  return Object.fromEntries(entries);
}

function expectSame(
  label: string,
  actual: Record<string, ArrayLike<number>>,
  expected: Record<string, ArrayLike<number>>,
): void {
  for (const [name, bits] of Object.entries(expected)) expectBitwiseEqual(`${name} of ${label}`, actual[name], bits);
}

describeCuda('KDA on streams', () => {
  let load: Tensor;
  beforeAll(() => {
    load = pool.twin([1, 4096, 8, 128], 'bfloat16').gpu;
  });

  test.each(CASES)('%s: 50 repeats of forward and backward under load are bitwise equal', async (_title, shape) => {
    const busy = new Stream(CUDA);
    const twins = drawKdaTwins(pool, shape);
    const expected = await bitsOf(runKdaTwins(twins, 'gpu'));
    for (let n = 0; n < 50; n += 10) {
      keepBusy(busy, load);
      const runs = Array.from({ length: 10 }, () => runKdaTwins(twins, 'gpu')); // back to back
      for (const [at, run] of runs.entries()) expectSame(`run ${n + at}`, await bitsOf(run), expected);
    }
    await busy.synchronize();
    disposeKdaTwins(twins);
  });

  test.each(CASES)(
    '%s: candle 3596: work on side streams is ordered, whatever is freed meanwhile',
    async (_, shape) => {
      const [producer, consumer] = [new Stream(CUDA), new Stream(CUDA)];
      const twins = drawKdaTwins(pool, shape);
      const expected = await bitsOf(runKdaTwins(twins, 'gpu'));
      for (let n = 0; n < 5; n++) {
        keepBusy(producer, load);
        expectSame(`run ${n}`, await bitsOf(runKdaTwins(twins, 'gpu', producer, consumer)), expected);
      }
      disposeKdaTwins(twins);
    },
  );

  test.each(CASES)('%s: a captured forward and backward, replayed with new operands', async (_, shape) => {
    const stream = new Stream(CUDA);
    const [twins, others] = [drawKdaTwins(pool, shape), drawKdaTwins(pool, shape)];
    let captured: Record<string, Tensor> = {};
    const graph = stream.capture(() => {
      captured = runKdaTwins(twins, 'gpu', stream, stream);
    });
    for (let n = 0; n < 3; n++) {
      if (n === 2) {
        for (const name of ['q', 'k', 'v', 'g', 'beta', 'dOut']) {
          twins.tensors[name].gpu.copyFrom(others.tensors[name].gpu, { stream });
        }
      }
      graph.replay();
      const bits = await Promise.all(Object.values(captured).map((tensor) => tensor.data()));
      const replayed = Object.fromEntries(Object.keys(captured).map((name, at) => [name, bits[at]]));
      expectSame(`replay ${n}`, replayed, await bitsOf(runKdaTwins(twins, 'gpu', stream, stream)));
    }
    [graph, ...Object.values(captured)].forEach((item) => item.dispose());
    [twins, others].forEach(disposeKdaTwins);
  });
});

describeCuda('memory of KDA', () => {
  // For each chunk of 64 tokens and each value head, in bfloat16: its first state [K, V], E [64, V], Kd, Kr, Qd [64, K], T and
  // Aqk [64, 64], of which ten blocks of 16 x 16 on and below the diagonal; in float32 a decay of each key, two norms and beta of each token (docs/kda.md).
  test('what a saving forward keeps for the backward is the states, E and the records of all chunks', async () => {
    const { tensors } = drawKdaTwins(pool, { T: 1000, heads: [2, 4], dims: [128, 128] });
    const { q, k, v, g, beta } = Object.fromEntries(
      Object.entries(tensors).map(([name, { gpu }]) => [name, gpu]),
    ) as Record<string, Tensor>;
    await Stream.current(CUDA).synchronize();
    const before = memoryStats(CUDA);
    const options = { qkL2Norm: true, betaLogits: true, gate: { lowerBound: -5 }, saveIntermediates: true };
    const { out, saved } = kdaForward(q, k, v, g, beta, options);
    const perChunk = 2 * (128 * 128 + 64 * 128 + 3 * 64 * 128 + 2 * 10 * 16 * 16) + 4 * (128 + 3 * 64);
    const kept = Math.ceil(1000 / 64) * 4 * perChunk;
    expect(saved.intermediateBytes).toBe(kept);
    expect(memoryStats(CUDA).liveBytes - before.liveBytes).toBe(out.byteLength + kept);
    out.dispose();
    saved.dispose();
    await Stream.current(CUDA).synchronize();
    expect({ ...memoryStats(CUDA), peakBytes: 0 }).toEqual({ ...before, peakBytes: 0 });
  });

  // The inputs and results of this problem take 1.4 GB; all other memory is taken.
  test.each([false, true])('a step of training at T 8192, H 64 takes 3 GB at most, saving %s', async (saving) => {
    const LIMIT = 3e9;
    const shape = { heads: [64, 64], dims: [128, 128], gateDtype: 'bfloat16', saveIntermediates: saving } as const;
    const small = drawKdaTwins(pool, { ...shape, T: 64 });
    await bitsOf(runKdaTwins(small, 'gpu')); // its kernels are loaded now
    const free = freeBytes();
    const twins = drawKdaTwins(pool, { ...shape, T: 8192 });
    const filler = Tensor.empty([Math.floor((free - LIMIT) / 4)], { device: CUDA });
    const results = runKdaTwins(twins, 'gpu');
    for (const name of ['out', 'dq', 'dk', 'dv', 'dg']) {
      using row = results[name].slice(1, 0, 1);
      expect((await valuesOf(row)).data.every(Number.isFinite)).toBe(true);
    }
    for (const tensor of [filler, ...Object.values(results)]) tensor.dispose();
    [small, twins].forEach(disposeKdaTwins);
    await Stream.current(CUDA).synchronize();
  });
});
