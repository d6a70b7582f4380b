import { attentionForward, Stream, systemInfo } from '../../lib';
import { changedFrom, joinOf, sliceOf } from '../support/arrays';
import { randomAttentionCase, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { expectBitwiseEqual } from '../support/compare';
import { withCpu } from '../support/cpu';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import { attentionOptions, fromTensor, readAll, runAttention, toTensor, type AttentionResults } from '../support/run';

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];

/** A dense case: sequences of `length` queries and keys, 4 heads over 2. */
function denseCase(random: Random, batch: number, length: number, options: AttentionCase['options']): AttentionCase {
  const [D, Dv] = [random.pick([16, 64, 72, 128]), random.pick([24, 64, 128])];
  return {
    title: 'dense',
    inputs: {
      q: random.tensor([batch, length, 4, D]),
      k: random.tensor([batch, length, 2, D]),
      v: random.tensor([batch, length, 2, Dv]),
    },
    dOut: random.tensor([batch, length, 4, Dv]),
    options,
  };
}

function expectSameResults(actual: AttentionResults, expected: AttentionResults): void {
  expect(Object.keys(actual)).toEqual(Object.keys(expected));
  for (const name of Object.keys(expected) as (keyof AttentionResults)[]) {
    expectBitwiseEqual(name, actual[name].data, expected[name].data);
  }
}

// Expected values: the same call with other later tokens.
test.each(DTYPES)('causal %s: later tokens change nothing before them, bitwise', async (dtype) => {
  const random = new Random(`attention causality ${dtype}`);
  const item = roundedAttentionCase(denseCase(random, 2, 150, { causal: true, softcap: 8 }), dtype);
  const before = await runAttention(item, dtype);
  for (const from of [1, 64, random.integer(2, 149)]) {
    const change = (tensor: AttentionCase['dOut']) => changedFrom(tensor, 1, from, () => random.integer(-9, 9));
    const { q, k, v } = item.inputs;
    const inputs = { q: change(q), k: change(k), v: change(v) };
    const after = await runAttention({ ...item, inputs, dOut: change(item.dOut) }, dtype);
    for (const name of ['out', 'dq'] as const) {
      const head = (tensor: AttentionCase['dOut']) => sliceOf(tensor, 1, 0, from).data;
      expectBitwiseEqual(`${name} before token ${from}`, head(after[name]), head(before[name]));
      expect(after[name].data).not.toEqual(before[name].data);
    }
    expectBitwiseEqual('lse', sliceOf(after.lse, 2, 0, from).data, sliceOf(before.lse, 2, 0, from).data);
  }
});

// Expected values: each batch entry alone.
test.each(DTYPES)('%s: batch entries are independent, bitwise', async (dtype) => {
  const random = new Random(`attention batch ${dtype}`);
  const item = roundedAttentionCase(denseCase(random, 3, 90, { window: [40, 12] }), dtype);
  const together = await runAttention(item, dtype);
  for (let b = 0; b < 3; b++) {
    const entry = (tensor: AttentionCase['dOut']) => sliceOf(tensor, 0, b, b + 1);
    const { q, k, v } = item.inputs;
    const inputs = { q: entry(q), k: entry(k), v: entry(v) };
    const alone = await runAttention({ ...item, inputs, dOut: entry(item.dOut) }, dtype);
    for (const name of Object.keys(alone) as (keyof AttentionResults)[]) {
      expectBitwiseEqual(`${name} of entry ${b}`, alone[name].data, entry(together[name]).data);
    }
  }
});

// Expected values: each sequence alone, as a dense call.
test.each(DTYPES)('%s: a packed sequence gives what it gives alone, bitwise', async (dtype) => {
  const random = new Random(`attention packed ${dtype}`);
  const lengths = [70, 1, 129, 33];
  const options = { causal: true, sink: random.tensor([4]) };
  const items = lengths.map((length) => {
    const item = denseCase(new Random('shape'), 1, length, options);
    const redraw = ({ shape }: AttentionCase['dOut']) => random.tensor(shape);
    const { q, k, v } = item.inputs;
    const inputs = { q: redraw(q), k: redraw(k), v: redraw(v) };
    return roundedAttentionCase({ ...item, inputs, dOut: redraw(item.dOut) }, dtype);
  });
  const flat = (tensors: readonly AttentionCase['dOut'][]) => {
    const { shape, data } = joinOf(tensors, 1);
    return { shape: shape.slice(1), data };
  };
  const cu = [0, 70, 71, 200, 233];
  const packed = await runAttention(
    {
      title: 'packed',
      inputs: {
        q: flat(items.map(({ inputs }) => inputs.q)),
        k: flat(items.map(({ inputs }) => inputs.k)),
        v: flat(items.map(({ inputs }) => inputs.v)),
      },
      dOut: flat(items.map(({ dOut }) => dOut)),
      options: { ...items[0].options, cuSeqlensQ: cu, cuSeqlensK: cu },
    },
    dtype,
  );
  for (const [n, item] of items.entries()) {
    const alone = await runAttention(item, dtype);
    const [start, end] = [cu[n], cu[n + 1]];
    for (const name of ['out', 'dq', 'dk', 'dv'] as const) {
      expectBitwiseEqual(`${name} of sequence ${n}`, sliceOf(packed[name], 0, start, end).data, alone[name].data);
    }
    expectBitwiseEqual(`lse of sequence ${n}`, sliceOf(packed.lse, 1, start, end).data, alone.lse.data);
  }
});

// Expected values: each query head alone, with its keys. Heads of a group share their keys' tiles where there is one query.
test.each(DTYPES)(
  '%s: one query a sequence, grouped heads: each head gives what it gives alone, bitwise',
  async (dtype) => {
    const random = new Random(`attention one query ${dtype}`);
    const [H, Hkv] = [70, 2];
    const cu = [0, 40, 41, 130];
    const item = roundedAttentionCase(
      {
        title: 'one query',
        inputs: { q: random.tensor([3, H, 24]), k: random.tensor([130, Hkv, 24]), v: random.tensor([130, Hkv, 40]) },
        dOut: random.tensor([3, H, 40]),
        options: { sink: random.tensor([H]), cuSeqlensQ: [0, 1, 2, 3], cuSeqlensK: cu, window: [60, 0] },
      },
      dtype,
    );
    for (const cpuThreads of [1, 2, 50]) {
      const together = await withCpu({ cpuThreads }, () => runAttention(item, dtype));
      for (const head of [0, 33, 34, 35, 69]) {
        const of = (tensor: AttentionCase['dOut'], at: number) => sliceOf(tensor, tensor.shape.length - 2, at, at + 1);
        const { q, k, v } = item.inputs;
        const kvHead = Math.floor(head / (H / Hkv));
        const inputs = { q: of(q, head), k: of(k, kvHead), v: of(v, kvHead) };
        const options = { ...item.options, sink: sliceOf(item.options.sink!, 0, head, head + 1) };
        const alone = await runAttention({ ...item, inputs, dOut: of(item.dOut, head), options }, dtype);
        expectBitwiseEqual(`out of head ${head}`, of(together.out, head).data, alone.out.data);
        expectBitwiseEqual(`dq of head ${head}`, of(together.dq, head).data, alone.dq.data);
        expectBitwiseEqual(`lse of head ${head}`, sliceOf(together.lse, 0, head, head + 1).data, alone.lse.data);
      }
    }
    expect(await attentionFailures(item, dtype)).toEqual([]);
  },
);

// Expected values: one thread.
test.each(DTYPES)('%s: equal for any number of threads, bitwise', async (dtype) => {
  const random = new Random(`attention threads ${dtype}`);
  const items = Array.from({ length: 4 }, () => roundedAttentionCase(randomAttentionCase(random, 'small'), dtype));
  items.push(roundedAttentionCase(denseCase(random, 1, 250, { causal: true, sink: random.tensor([4]) }), dtype));
  for (const item of items) {
    const single = await withCpu({ cpuThreads: 1 }, () => runAttention(item, dtype));
    for (const cpuThreads of [2, 3, 8]) {
      expectSameResults(await withCpu({ cpuThreads }, () => runAttention(item, dtype)), single);
    }
  }
});

// Expected values: the float64 reference.
describe.each(systemInfo().cpu.instructionSets)('instruction set %s', (cpuInstructionSet) => {
  test.each(DTYPES)('%s attention equals the reference', async (dtype) => {
    const random = new Random(`attention ${cpuInstructionSet} ${dtype}`);
    for (let n = 0; n < 8; n++) {
      const item = randomAttentionCase(random, 'small');
      const failures = await withCpu({ cpuInstructionSet }, () => attentionFailures(item, dtype));
      expect({ title: item.title, failures }).toEqual({ title: item.title, failures: [] });
    }
  });
});

// Expected values: the first of the repeats, which run while another stream keeps the processor busy.
test('50 repeats under load are bitwise equal', async () => {
  const random = new Random('attention repeats');
  const item = denseCase(random, 2, 130, { causal: true, window: [50, 50], sink: random.tensor([4]) });
  const first = await runAttention(item, 'bfloat16');
  const other = new Stream();
  const [q, k, v] = [item.inputs.q, item.inputs.k, item.inputs.v].map((tensor) => toTensor(tensor, 'float32'));
  for (let n = 0; n < 50; n++) {
    const load = attentionForward(q, k, v, { stream: other });
    expectSameResults(await runAttention(item, 'bfloat16'), first);
    load.out.dispose();
    load.lse.dispose();
  }
  await other.synchronize();
});

// Expected values: the inputs before the call.
test('inputs are bit-identical after a call', async () => {
  const random = new Random('attention inputs');
  const item = roundedAttentionCase(denseCase(random, 1, 70, { sink: random.tensor([4]) }), 'float32');
  const [q, k, v] = [item.inputs.q, item.inputs.k, item.inputs.v].map((tensor) => toTensor(tensor, 'float32'));
  const options = attentionOptions(item.options);
  await readAll({ ...attentionForward(q, k, v, options) });
  for (const [name, tensor, source] of [
    ['q', q, item.inputs.q],
    ['k', k, item.inputs.k],
    ['v', v, item.inputs.v],
    ['sink', options.sink!, item.options.sink!],
  ] as const) {
    expectBitwiseEqual(name, (await fromTensor(tensor)).data, source.data);
  }
});
