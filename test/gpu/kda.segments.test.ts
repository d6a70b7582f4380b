import { failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { drawKdaCase, fullKdaCase, roundedKdaCase, type KdaCase } from '../support/kdaCases';
import { expectIndependentEntries, expectPackedAsAlone, expectSameResults } from '../support/kdaProperties';
import { Random } from '../support/random';
import { runKda, type KdaRun } from '../support/run';
import { kdaNaturalsByCpu, kdaToleranceOnGpu } from '../support/kdaTolerance';

// Long sequences of few heads, which the forward recurrence cuts into segments unless `batchInvariant` says otherwise.
// Expected values: the CPU backend in float32, and what a test states.

const LONG = 4500;
const HEADS = [1, 2] as const;
const onGpu = (item: KdaCase, run: Omit<KdaRun, 'dtype'> = {}) =>
  runKda(item, { ...run, dtype: 'bfloat16', device: CUDA });

type Shape = readonly [K: number, V: number, cuSeqlens: readonly number[] | undefined];
const SHAPES: readonly Shape[] = [
  [128, 128, undefined],
  [64, 128, undefined],
  [100, 60, undefined],
  [128, 128, [0, 4200, 4200, 4210, 4490]],
];

function drawn([K, V, cu]: Shape): KdaCase {
  const random = new Random(`KDA segments ${K} ${V} ${cu?.length}`);
  return roundedKdaCase(fullKdaCase(random, { T: LONG, heads: HEADS, dims: [K, V] }, cu), 'bfloat16');
}

describeCuda('KDA in segments', () => {
  test.each(SHAPES)('K %i, V %i, cuSeqlens %j: equals the CPU', async (...shape) => {
    const item = drawn(shape);
    const expected = await runKda(item, { dtype: 'float32' });
    const naturals = await kdaNaturalsByCpu(item);
    for (const saveIntermediates of [false, true]) {
      const actual = await onGpu(item, { saveIntermediates });
      const failures = failuresOf(actual, expected, (name) => kdaToleranceOnGpu(name, expected[name], naturals));
      expect({ saveIntermediates, failures }).toEqual({ saveIntermediates, failures: [] });
    }
  });

  test('they are in use, and batchInvariant turns them off', async () => {
    // Hardly any decay, so that the last bits of the state at a segment's start are still seen at the end.
    const random = new Random('KDA segments in use');
    const item = drawKdaCase(random, { T: LONG, heads: HEADS, dims: [128, 128] }, {}, () => -0.002 * random.uniform());
    const [cut, whole] = [await onGpu(item), await onGpu(item, { batchInvariant: true })];
    expect(cut.finalState.data).not.toEqual(whole.finalState.data); // another order of the same sums
    expectSameResults(await onGpu(item), cut);
  });

  test('with batchInvariant batch entries and packed sequences give what they give alone, bitwise', async () => {
    const invariant = (item: KdaCase) => onGpu(item, { batchInvariant: true });
    const random = new Random('KDA batch invariance');
    const batch = fullKdaCase(random, { B: 2, T: LONG, heads: HEADS, dims: [128, 128] });
    await expectIndependentEntries(invariant, roundedKdaCase(batch, 'bfloat16'));
    await expectPackedAsAlone(invariant, drawn(SHAPES[3]));
  });
});
