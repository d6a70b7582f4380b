import { kdaForward, Stream, systemInfo } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { kdaFailures } from '../support/check';
import { expectBitwiseEqual, expectClose, failuresOf } from '../support/compare';
import { withCpu } from '../support/cpu';
import type { Operand } from '../support/dtypes';
import { fullKdaCase, kdaReference, randomKdaCase, roundedKdaCase } from '../support/kdaCases';
import { expectChunkStatesGoOn, kdaChunkStatesReference, runKdaChunkStates } from '../support/kdaChunkStates';
import { runKdaInParts } from '../support/kdaParts';
import {
  expectCausal,
  expectIndependentEntries,
  expectPackedAsAlone,
  expectSameLayouts,
  expectSameResults,
} from '../support/kdaProperties';
import { Random } from '../support/random';
import { fromTensor, readAll, runKda, toTensor } from '../support/run';
import { kdaNaturals, kdaTolerance } from '../support/kdaTolerance';

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];
const DIMS = [64, 48] as const;

// Expected values: the same call with other later tokens.
test.each(DTYPES)('%s: later tokens change no output before them, bitwise', async (dtype) => {
  const random = new Random(`KDA causality ${dtype}`);
  const item = roundedKdaCase(fullKdaCase(random, { B: 2, T: 140, dims: DIMS }), dtype);
  for (const from of [1, 64, random.integer(2, 139)]) {
    await expectCausal((next) => runKda(next, { dtype }), item, from, random);
  }
});

// Expected values: each batch entry alone.
test.each(DTYPES)('%s: batch entries are independent, bitwise', async (dtype) => {
  const item = roundedKdaCase(fullKdaCase(new Random(`KDA batch ${dtype}`), { B: 3, T: 100, dims: DIMS }), dtype);
  await expectIndependentEntries((next) => runKda(next, { dtype }), item);
});

// Expected values: each sequence alone, as a dense call.
test.each(DTYPES)('%s: a packed sequence gives what it gives alone, bitwise', async (dtype) => {
  const random = new Random(`KDA packed ${dtype}`);
  const item = roundedKdaCase(fullKdaCase(random, { T: 233, dims: DIMS }, [0, 70, 70, 71, 200, 233]), dtype);
  await expectPackedAsAlone((next) => runKda(next, { dtype }), item);
});

// Expected values: the float64 reference on the whole; states and their gradients carry over from call to call.
test('a sequence cut anywhere and chained through its states equals one call, gradients too', async () => {
  const random = new Random('KDA cuts');
  const length = 150;
  const item = roundedKdaCase(fullKdaCase(random, { B: 2, T: length, dims: DIMS }), 'float32');
  const expected = kdaReference(item);
  const naturals = kdaNaturals(item);
  const cut = random.integer(2, length - 2);
  for (const lengths of [
    [1, 149],
    [64, 86],
    [63, 1, 64, 22],
    [cut, length - cut],
  ]) {
    const actual = await runKdaInParts(item, lengths, 'float32');
    const failures = failuresOf(actual, expected, (name) => kdaTolerance('float32', name, expected[name]!, naturals));
    expect({ lengths, failures }).toEqual({ lengths, failures: [] });
  }
});

// Expected values: the float64 reference on the tokens before each chunk.
test.each([undefined, [0, 70, 70, 71, 200, 233]])('states of chunks equal the reference, cuSeqlens %j', async (cu) => {
  const random = new Random(`KDA chunk states ${cu?.length}`);
  for (const stateLayout of ['kv', 'vk'] as const) {
    const item = fullKdaCase(random, { B: cu ? 1 : 2, T: 233, dims: stateLayout === 'kv' ? DIMS : [48, 48] }, cu);
    const rounded = roundedKdaCase({ ...item, options: { ...item.options, stateLayout } }, 'float32');
    const expected = kdaChunkStatesReference(rounded);
    const { chunkStates } = await runKdaChunkStates(rounded, 'float32');
    expectClose('chunkStates', chunkStates, expected, kdaTolerance('float32', 'finalState', expected, {}));
  }
});

// Expected values: the whole.
test.each(DTYPES)('%s: a call from the state of a chunk gives the rest of the whole, bitwise', async (dtype) => {
  const drawn = fullKdaCase(new Random(`KDA from chunks ${dtype}`), { B: 2, T: 200, dims: DIMS });
  await expectChunkStatesGoOn(roundedKdaCase(drawn, dtype), dtype);
});

// Expected values: one thread.
test.each(DTYPES)('%s: equal for any number of threads, bitwise', async (dtype) => {
  const random = new Random(`KDA threads ${dtype}`);
  const items = Array.from({ length: 4 }, () => roundedKdaCase(randomKdaCase(random, 'small'), dtype));
  items.push(roundedKdaCase(fullKdaCase(random, { T: 200, dims: DIMS }), dtype));
  for (const item of items) {
    const single = await withCpu({ cpuThreads: 1 }, () => runKda(item, { dtype }));
    for (const cpuThreads of [2, 3, 8]) {
      expectSameResults(await withCpu({ cpuThreads }, () => runKda(item, { dtype })), single);
    }
  }
});

// Expected values: the float64 reference.
describe.each(systemInfo().cpu.instructionSets)('instruction set %s', (cpuInstructionSet) => {
  test.each(DTYPES)('%s KDA equals the reference', async (dtype) => {
    const random = new Random(`KDA ${cpuInstructionSet} ${dtype}`);
    for (let n = 0; n < 8; n++) {
      const item = randomKdaCase(random, 'small');
      const failures = await withCpu({ cpuInstructionSet }, () => kdaFailures(item, { dtype }));
      expect({ title: item.title, failures }).toEqual({ title: item.title, failures: [] });
    }
  });
});

// Expected values: the recomputing mode; what the saving mode keeps is what the other one computes again.
test.each(DTYPES)('%s: the saving mode gives what the recomputing mode gives, bitwise', async (dtype) => {
  const random = new Random(`KDA saving ${dtype}`);
  for (let n = 0; n < 6; n++) {
    const item = roundedKdaCase(randomKdaCase(random, 'small'), dtype);
    const recomputed = await runKda(item, { dtype, saveIntermediates: false });
    expectSameResults(await runKda(item, { dtype, saveIntermediates: true }), recomputed);
  }
});

// Expected values: the first of the repeats, which run while another stream keeps the processor busy.
test('50 repeats under load are bitwise equal', async () => {
  const random = new Random('KDA repeats');
  const item = fullKdaCase(random, { T: 130, dims: DIMS });
  const first = await runKda(item, { dtype: 'bfloat16' });
  const other = new Stream();
  const { q, k, v, g, beta } = item.inputs;
  const loadInputs = [q, k, v, g, beta].map((tensor) => toTensor(tensor, 'float32'));
  for (let n = 0; n < 50; n++) {
    const [lq, lk, lv, lg, lbeta] = loadInputs;
    const load = kdaForward(lq, lk, lv, lg, lbeta, {
      qkL2Norm: true,
      gate: { lowerBound: -5 },
      betaLogits: true,
      stream: other,
    });
    expectSameResults(await runKda(item, { dtype: 'bfloat16' }), first);
    load.out.dispose();
    load.saved.dispose();
  }
  await other.synchronize();
});

// Expected values: the inputs before the call.
test('inputs are bit-identical after a call', async () => {
  const item = roundedKdaCase(fullKdaCase(new Random('KDA inputs'), { T: 70, dims: DIMS }), 'float32');
  const { q, k, v, g, beta } = item.inputs;
  const sources = { q, k, v, g, beta, initialState: item.options.initialState!, aLog: item.options.gate!.aLog! };
  const tensors = Object.fromEntries(
    Object.entries(sources).map(([name, source]) => [name, toTensor(source, 'float32')]),
  ) as Record<keyof typeof sources, ReturnType<typeof toTensor>>;
  const { saved, ...outputs } = kdaForward(tensors.q, tensors.k, tensors.v, tensors.g, tensors.beta, {
    ...{ qkL2Norm: true, betaLogits: true, initialState: tensors.initialState, outputFinalState: true },
    gate: { aLog: tensors.aLog },
  });
  await readAll(outputs);
  saved.dispose();
  for (const [name, source] of Object.entries(sources) as [keyof typeof sources, Float64Tensor][]) {
    expectBitwiseEqual(name, (await fromTensor(tensors[name])).data, source.data);
  }
});

// Expected values: the kv layout; a random state is not symmetric, so a silent transpose would show.
test('both state layouts give the same, with K = V and a random state', async () => {
  const drawn = fullKdaCase(new Random('KDA layouts'), { B: 2, T: 70, dims: [128, 128] });
  const item = roundedKdaCase(drawn, 'float32');
  await expectSameLayouts((next) => runKda(next, { dtype: 'float32' }), item, 1e-6);
});

// Expected values: the float64 reference. A row's sum of squares passes the largest float from 1.8e19 on, and underflows
// below 1e-23.
test.each([1e18, 1e25, 3e37, 1e-20, 1e-38])('the L2 norm of rows of size %d', async (size) => {
  for (const dims of [
    [48, 32],
    [5, 16], // its backward works in double precision
  ] as const) {
    const random = new Random(`norm ${size} ${dims[0]}`);
    const drawn = fullKdaCase(random, { T: 70, dims });
    const large = ({ shape, data }: Float64Tensor) => ({ shape, data: data.map((x, i) => (i % 3 ? size * x : x)) });
    const { q, k } = drawn.inputs;
    const item = { ...drawn, inputs: { ...drawn.inputs, q: large(q), k: large(k) } };
    for (const dtype of ['float32', 'bfloat16'] as const) expect(await kdaFailures(item, { dtype })).toEqual([]);
  }
});
