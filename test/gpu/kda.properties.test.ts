import { kdaForward, type Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from '../support/arrays';
import { expectBitwiseEqual, expectClose, expectZeroRows, failuresOf, maxAbs } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { fullKdaCase, roundedKdaCase, withTokens, type KdaCase } from '../support/kdaCases';
import { expectChunkStatesGoOn, kdaChunkStatesReference, runKdaChunkStates } from '../support/kdaChunkStates';
import { runKdaInParts } from '../support/kdaParts';
import {
  expectCausal,
  expectIndependentEntries,
  expectPackedAsAlone,
  expectSameLayouts,
  TOKEN_RESULTS,
} from '../support/kdaProperties';
import { Random } from '../support/random';
import { kdaOptions, runKda, toTensor, type KdaResults } from '../support/run';
import { kdaNaturalsByCpu, kdaToleranceOnGpu } from '../support/kdaTolerance';

// Expected values: what a test states; for a sequence in parts, the CPU backend in float32.

const DIMS = [
  [128, 128],
  [64, 64],
  [100, 60],
] as const;
const run = (item: KdaCase) => runKda(item, { dtype: 'bfloat16', device: CUDA });
const full = (random: Random, T: number, dims: readonly [number, number], more: { B?: number; cu?: number[] } = {}) =>
  roundedKdaCase(fullKdaCase(random, { ...(more.B && { B: more.B }), T, dims }, more.cu), 'bfloat16');
/** The strongest difference that two roundings to bfloat16 of one value make, relative to the largest. */
const TWO_ROUNDINGS = 2 ** -7;

describeCuda('KDA, what holds of every result', () => {
  test.each(DIMS)('K %i, V %i: later tokens change no output before them, bitwise', async (...dims) => {
    const random = new Random(`KDA causality ${dims.join()}`);
    const item = full(random, 140, dims, { B: 2 });
    for (const from of [1, 64, random.integer(2, 139)]) await expectCausal(run, item, from, random);
  });

  test.each(DIMS)('K %i, V %i: batch entries are independent, bitwise', async (...dims) => {
    await expectIndependentEntries(run, full(new Random(`KDA batch ${dims.join()}`), 100, dims, { B: 3 }));
  });

  test.each(DIMS)('K %i, V %i: a packed sequence gives what it gives alone, bitwise', async (...dims) => {
    const random = new Random(`KDA packed ${dims.join()}`);
    await expectPackedAsAlone(run, full(random, 233, dims, { cu: [0, 70, 70, 71, 200, 233] }));
  });

  test.each(DIMS)('K %i, V %i: states with values first give the same', async (...dims) => {
    await expectSameLayouts(run, full(new Random(`KDA layouts ${dims.join()}`), 100, dims, { B: 2 }), 1e-6);
  });

  test.each(DIMS)('K %i, V %i: the saving mode gives what recomputing gives', async (...dims) => {
    const item = full(new Random(`KDA saving ${dims.join()}`), 150, dims);
    const saving = await runKda(item, { dtype: 'bfloat16', device: CUDA, saveIntermediates: true });
    const recomputed = await run(item);
    const tolerance = (name: keyof KdaResults) => ({ maxAbs: TWO_ROUNDINGS * maxAbs(recomputed[name].data) });
    expect(failuresOf(saving, recomputed, tolerance)).toEqual([]);
    expectBitwiseEqual('out', saving.out.data, recomputed.out.data);
    expectBitwiseEqual('finalState', saving.finalState.data, recomputed.finalState.data);
  });

  test('a sequence cut anywhere and chained through its states equals one call, gradients too', async () => {
    const random = new Random('KDA cuts');
    const item = full(random, 150, [128, 128], { B: 2 });
    const expected = await runKda(item, { dtype: 'float32' });
    const naturals = await kdaNaturalsByCpu(item);
    const cut = random.integer(2, 148);
    for (const lengths of [
      [1, 149],
      [64, 86],
      [63, 1, 64, 22],
      [cut, 150 - cut],
    ]) {
      // prettier-ignore
      const parts = await runKdaInParts(item, lengths, 'bfloat16', CUDA);
      const failures = failuresOf(parts, expected, (name) => kdaToleranceOnGpu(name, expected[name], naturals));
      expect({ lengths, failures }).toEqual({ lengths, failures: [] });
    }
  });

  // Expected values: the float64 reference on the tokens before each chunk.
  test.each(DIMS)('K %i, V %i: states of chunks equal the reference', async (...dims) => {
    const random = new Random(`KDA chunk states ${dims.join()}`);
    for (const item of [
      full(random, 150, dims, { B: 2 }),
      full(random, 233, dims, { cu: [0, 70, 70, 71, 200, 233] }),
    ]) {
      const expected = kdaChunkStatesReference(item);
      const { chunkStates } = await runKdaChunkStates(item, 'bfloat16', CUDA);
      expectClose('chunkStates', chunkStates, expected, kdaToleranceOnGpu('finalState', expected, {}));
    }
  });

  test.each(DIMS)('K %i, V %i: a call from the state of a chunk gives the rest of the whole', async (...dims) => {
    const item = full(new Random(`KDA from chunks ${dims.join()}`), 200, dims, { B: 2 });
    await expectChunkStatesGoOn(item, 'bfloat16', CUDA);
  });

  test('inputs are bit-identical after a call', async () => {
    const item = full(new Random('KDA inputs'), 70, [128, 128]);
    const { q, k, v, g, beta } = item.inputs;
    const operands = [q, k, v].map((tensor) => toTensor(tensor, 'bfloat16', CUDA)) as [Tensor, Tensor, Tensor];
    const gates = [g, beta].map((tensor) => toTensor(tensor, 'float32', CUDA)) as [Tensor, Tensor];
    const options = kdaOptions(item.options, CUDA);
    const all = [...operands, ...gates, options.initialState!, options.gate!.aLog!, options.gate!.dtBias!];
    const before = await Promise.all(all.map((tensor) => tensor.data()));
    await kdaForward(...operands, ...gates, { ...options, outputFinalState: true }).out.data();
    for (const [n, tensor] of all.entries()) expectBitwiseEqual(`input ${n}`, await tensor.data(), before[n]);
  });
});

describeCuda('KDA and NaN', () => {
  const spoiled = ({ shape, data }: Float64Tensor, from: number, to: number): Float64Tensor => {
    const width = data.length / shape[1];
    return { shape, data: data.map((value, at) => (at >= from * width && at < to * width ? NaN : value)) };
  };

  test.each(DIMS)('K %i, V %i: it stays in its packed sequence; rows past the end are exactly 0', async (...dims) => {
    const item = full(new Random(`KDA NaN ${dims.join()}`), 300, dims, { cu: [0, 40, 145, 210] });
    const clean = await run(item);
    const dirty = await run(
      withTokens(item, (tensor) => spoiled({ ...tensor, data: spoiled(tensor, 40, 145).data }, 210, 300)),
    );
    for (const name of TOKEN_RESULTS) {
      for (const [start, end] of [
        [0, 40],
        [145, 210],
      ] as const) {
        // prettier-ignore
        const [actual, expected] = [dirty, clean].map((results) => sliceOf(results[name], 1, start, end).data);
        expectBitwiseEqual(`${name} from ${start}`, actual, expected);
      }
      const [, rows, ...rest] = dirty[name].shape;
      expectZeroRows(name, { shape: [rows, ...rest], data: dirty[name].data }, 210, 300);
      expect(sliceOf(dirty[name], 1, 40, 145).data.every(Number.isNaN)).toBe(true);
    }
    for (const name of ['finalState', 'dInitialState'] as const) {
      for (const n of [0, 2]) {
        const [actual, expected] = [dirty, clean].map((results) => sliceOf(results[name], 0, n, n + 1).data);
        expectBitwiseEqual(`${name} ${n}`, actual, expected);
      }
    }
  });

  test.each(['q', 'k', 'v', 'g', 'beta', 'dOut'] as const)('in %s it stays in its head', async (target) => {
    const item = full(new Random(`KDA NaN head ${target}`), 150, [128, 128]); // value heads 0 and 1 share q/k head 0
    const clean = await run(item);
    const source = target === 'dOut' ? item.dOut : item.inputs[target];
    const heads = source.shape[2];
    const width = target === 'beta' ? 1 : source.shape[3];
    const bad: Float64Tensor = {
      shape: source.shape,
      data: source.data.map((value, at) => (Math.floor(at / width) % heads === 0 ? NaN : value)),
    };
    const dirty = await run(target === 'dOut' ? { ...item, dOut: bad } : { ...item, inputs: { ...item.inputs, [target]: bad } }); // prettier-ignore
    expect(dirty[target === 'dOut' ? 'dv' : 'out'].data.some(Number.isNaN)).toBe(true);
    for (const name of [...TOKEN_RESULTS, 'finalState', 'dInitialState'] as const) {
      // Heads of dq and dk are those of q and k; states have their heads in dimension 1.
      const dim = name === 'finalState' || name === 'dInitialState' ? 1 : 2;
      const first = target === 'q' || target === 'k' ? 2 : 1;
      const from = name === 'dq' || name === 'dk' ? 1 : first;
      const [actual, expected] = [dirty, clean].map((results) => {
        return sliceOf(results[name], dim, from, results[name].shape[dim]).data;
      });
      expectBitwiseEqual(name, actual, expected);
    }
  });

  test('in v of one token it reaches no output of the chunks before it', async () => {
    const item = full(new Random('KDA NaN token'), 300, [128, 128]);
    const { v } = item.inputs;
    const dirty = await run({ ...item, inputs: { ...item.inputs, v: spoiled(v, 150, 151) } });
    const clean = await run(item);
    expectBitwiseEqual('out', sliceOf(dirty.out, 1, 0, 128).data, sliceOf(clean.out, 1, 0, 128).data);
    expect(sliceOf(dirty.out, 1, 150, 300).data.every(Number.isNaN)).toBe(true);
  });
});
