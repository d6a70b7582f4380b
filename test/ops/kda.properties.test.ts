import { kdaForward, Stream, systemInfo } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { changedFrom, sliceOf } from '../support/arrays';
import { kdaFailures } from '../support/check';
import { expectBitwiseEqual, failuresOf, maxAbs } from '../support/compare';
import { withCpu } from '../support/cpu';
import type { Operand } from '../support/dtypes';
import { kdaReference, randomKdaCase, roundedKdaCase, type KdaCase } from '../support/kdaCases';
import { runKdaInParts } from '../support/kdaParts';
import { Random } from '../support/random';
import { fromTensor, readAll, runKda, toTensor, type KdaResults } from '../support/run';
import { kdaNaturals, kdaTolerance } from '../support/tolerance';

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];
const TOKEN_RESULTS = ['out', 'dq', 'dk', 'dv', 'dg', 'dbeta'] as const;
const [H, HV] = [2, 4];

/** A dense case with every option: softplus gate, logits, states, L2 norm. */
function denseCase(random: Random, batch: number, length: number, [K, V] = [64, 48]): KdaCase {
  const state = () => random.tensor([batch, HV, K, V]);
  return {
    title: 'dense',
    inputs: {
      q: random.tensor([batch, length, H, K]),
      k: random.tensor([batch, length, H, K]),
      v: random.tensor([batch, length, HV, V]),
      g: random.tensor([batch, length, HV, K]),
      beta: random.tensor([batch, length, HV]),
    },
    dOut: random.tensor([batch, length, HV, V]),
    dFinalState: state(),
    options: {
      qkL2Norm: true,
      betaLogits: true,
      allowNegEigval: true,
      gate: { aLog: random.tensor([HV]), dtBias: random.tensor([HV, K]) },
      initialState: state(),
    },
  };
}

function mapped(item: KdaCase, map: (tensor: Float64Tensor) => Float64Tensor): KdaCase {
  const { q, k, v, g, beta } = item.inputs;
  return { ...item, inputs: { q: map(q), k: map(k), v: map(v), g: map(g), beta: map(beta) }, dOut: map(item.dOut) };
}

function expectSameResults(actual: KdaResults, expected: KdaResults): void {
  expect(Object.keys(actual)).toEqual(Object.keys(expected));
  for (const name of Object.keys(expected) as (keyof KdaResults)[]) {
    expectBitwiseEqual(name, actual[name].data, expected[name].data);
  }
}

// Expected values: the same call with other later tokens.
test.each(DTYPES)('%s: later tokens change no output before them, bitwise', async (dtype) => {
  const random = new Random(`KDA causality ${dtype}`);
  const item = roundedKdaCase(denseCase(random, 2, 140), dtype);
  const before = await runKda(item, { dtype });
  for (const from of [1, 64, random.integer(2, 139)]) {
    const after = await runKda(
      mapped(item, (tensor) => changedFrom(tensor, 1, from, () => random.integer(-2, 2))),
      { dtype },
    );
    const head = ({ out }: KdaResults) => sliceOf(out, 1, 0, from).data;
    expectBitwiseEqual(`out before token ${from}`, head(after), head(before));
    expect(after.out.data).not.toEqual(before.out.data);
  }
});

// Expected values: each batch entry alone.
test.each(DTYPES)('%s: batch entries are independent, bitwise', async (dtype) => {
  const item = roundedKdaCase(denseCase(new Random(`KDA batch ${dtype}`), 3, 100), dtype);
  const together = await runKda(item, { dtype });
  for (let b = 0; b < 3; b++) {
    const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, b, b + 1);
    const { options, dFinalState } = item;
    const alone = await runKda(
      {
        ...mapped(item, entry),
        dFinalState: entry(dFinalState!),
        options: { ...options, initialState: entry(options.initialState!) },
      },
      { dtype },
    );
    for (const name of [...TOKEN_RESULTS, 'finalState', 'dInitialState'] as const) {
      expectBitwiseEqual(`${name} of entry ${b}`, alone[name].data, entry(together[name]).data);
    }
  }
});

// Expected values: each sequence alone, as a dense call.
test.each(DTYPES)('%s: a packed sequence gives what it gives alone, bitwise', async (dtype) => {
  const random = new Random(`KDA packed ${dtype}`);
  const cu = [0, 70, 70, 71, 200, 233];
  const drawn = denseCase(random, 1, 233);
  const state = () => random.tensor([5, HV, 64, 48]);
  const options = { ...drawn.options, cuSeqlens: cu, initialState: state() };
  const item = roundedKdaCase({ ...drawn, dFinalState: state(), options }, dtype);
  const packed = await runKda(item, { dtype });
  for (let n = 0; n < 5; n++) {
    const [start, end] = [cu[n], cu[n + 1]];
    const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, n, n + 1);
    if (start === end) {
      expectBitwiseEqual('state passed through', entry(packed.finalState).data, entry(item.options.initialState!).data);
      expectBitwiseEqual('its gradient', entry(packed.dInitialState).data, entry(item.dFinalState!).data);
      continue;
    }
    const { cuSeqlens: _cuSeqlens, ...rest } = item.options;
    const alone = await runKda(
      {
        ...mapped(item, (tensor) => sliceOf(tensor, 1, start, end)),
        dFinalState: entry(item.dFinalState!),
        options: { ...rest, initialState: entry(rest.initialState!) },
      },
      { dtype },
    );
    for (const name of TOKEN_RESULTS) {
      expectBitwiseEqual(`${name} of sequence ${n}`, sliceOf(packed[name], 1, start, end).data, alone[name].data);
    }
    expectBitwiseEqual(`finalState ${n}`, entry(packed.finalState).data, alone.finalState.data);
    expectBitwiseEqual(`dInitialState ${n}`, entry(packed.dInitialState).data, alone.dInitialState.data);
  }
});

// Expected values: the float64 reference on the whole; states and their gradients carry over from call to call.
test('a sequence cut anywhere and chained through its states equals one call, gradients too', async () => {
  const random = new Random('KDA cuts');
  const length = 150;
  const item = roundedKdaCase(denseCase(random, 2, length), 'float32');
  const expected = kdaReference(item);
  const naturals: Partial<Record<keyof KdaResults, number>> = kdaNaturals(item);
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

// Expected values: one thread.
test.each(DTYPES)('%s: equal for any number of threads, bitwise', async (dtype) => {
  const random = new Random(`KDA threads ${dtype}`);
  const items = Array.from({ length: 4 }, () => roundedKdaCase(randomKdaCase(random, 'small'), dtype));
  items.push(roundedKdaCase(denseCase(random, 1, 200), dtype));
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
  const item = denseCase(random, 1, 130);
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
  const item = roundedKdaCase(denseCase(new Random('KDA inputs'), 1, 70), 'float32');
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
  const item = roundedKdaCase(denseCase(new Random('KDA layouts'), 2, 70, [128, 128]), 'float32');
  const transposed = ({ shape, data }: Float64Tensor): Float64Tensor => {
    const result = data.slice();
    data.forEach((value, at) => {
      const [block, i, j] = [Math.floor(at / 16384), Math.floor(at / 128) % 128, at % 128];
      result[block * 16384 + j * 128 + i] = value;
    });
    return { shape, data: result };
  };
  const kv = await runKda(item, { dtype: 'float32' });
  const vk = await runKda(
    {
      ...item,
      dFinalState: transposed(item.dFinalState!),
      options: { ...item.options, stateLayout: 'vk', initialState: transposed(item.options.initialState!) },
    },
    { dtype: 'float32' },
  );
  for (const name of [...TOKEN_RESULTS, 'dALog', 'dDtBias'] as const) {
    expect(
      failuresOf({ [name]: vk[name] }, { [name]: kv[name] }, () => ({ maxAbs: 1e-6 * maxAbs(kv[name].data) })),
    ).toEqual([]);
  }
  for (const name of ['finalState', 'dInitialState'] as const) {
    const tolerance = { maxAbs: 1e-6 * maxAbs(kv[name].data) };
    expect(failuresOf({ [name]: transposed(vk[name]) }, { [name]: kv[name] }, () => tolerance)).toEqual([]);
  }
});

// Expected values: the float64 reference. A row's sum of squares passes the largest float from 1.8e19 on, and underflows
// below 1e-23.
test.each([1e18, 1e25, 3e37, 1e-20, 1e-38])('the L2 norm of rows of size %d', async (size) => {
  for (const dims of [
    [48, 32],
    [5, 16], // its backward works in double precision
  ] as const) {
    const random = new Random(`norm ${size} ${dims[0]}`);
    const drawn = denseCase(random, 1, 70, [...dims]);
    const large = ({ shape, data }: Float64Tensor) => ({ shape, data: data.map((x, i) => (i % 3 ? size * x : x)) });
    const { q, k } = drawn.inputs;
    const item = { ...drawn, inputs: { ...drawn.inputs, q: large(q), k: large(k) } };
    for (const dtype of ['float32', 'bfloat16'] as const) expect(await kdaFailures(item, { dtype })).toEqual([]);
  }
});
