import type { Float64Tensor } from '../../lib/reference/float64';
import { changedFrom, sliceOf } from './arrays';
import { expectBitwiseEqual, failuresOf, maxAbs } from './compare';
import { withTokens, type KdaCase } from './kdaCases';
import type { Random } from './random';
import type { KdaResults } from './run';

// What holds of KDA on every device: each function takes a case and a way to run one.

type Run = (item: KdaCase) => Promise<KdaResults>;

export const TOKEN_RESULTS = ['out', 'dq', 'dk', 'dv', 'dg', 'dbeta'] as const;
const STATE_RESULTS = ['finalState', 'dInitialState'] as const;

export function expectSameResults(actual: KdaResults, expected: KdaResults): void {
  expect(Object.keys(actual)).toEqual(Object.keys(expected));
  for (const name of Object.keys(expected) as (keyof KdaResults)[]) {
    expectBitwiseEqual(name, actual[name].data, expected[name].data);
  }
}

/** Other tokens from `from` on change no output before them, bitwise, and some after. */
export async function expectCausal(run: Run, item: KdaCase, from: number, random: Random): Promise<void> {
  const [before, after] = [
    await run(item),
    await run(withTokens(item, (tensor) => changedFrom(tensor, 1, from, () => random.integer(-2, 2)))),
  ];
  const head = ({ out }: KdaResults) => sliceOf(out, 1, 0, from).data;
  expectBitwiseEqual(`out before token ${from}`, head(after), head(before));
  expect(after.out.data).not.toEqual(before.out.data);
}

/** Each entry of a batch gives alone what it gives with the others, bitwise. */
export async function expectIndependentEntries(run: Run, item: KdaCase): Promise<void> {
  const together = await run(item);
  for (let b = 0; b < item.dOut.shape[0]; b++) {
    const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, b, b + 1);
    const alone = await run(withStates(withTokens(item, entry), entry));
    for (const name of [...TOKEN_RESULTS, ...STATE_RESULTS]) {
      expectBitwiseEqual(`${name} of entry ${b}`, alone[name].data, entry(together[name]).data);
    }
  }
}

/** Each packed sequence gives what it gives alone as a dense call, bitwise; an empty one passes its states through. */
export async function expectPackedAsAlone(run: Run, item: KdaCase): Promise<void> {
  const { cuSeqlens, ...options } = item.options;
  const offsets = Array.from(cuSeqlens!);
  const packed = await run(item);
  for (const [n, start] of offsets.slice(0, -1).entries()) {
    const end = offsets[n + 1];
    const entry = (tensor: Float64Tensor) => sliceOf(tensor, 0, n, n + 1);
    const tokens = (tensor: Float64Tensor) => sliceOf(tensor, 1, start, end);
    if (start === end) {
      expectBitwiseEqual('state passed through', entry(packed.finalState).data, entry(options.initialState!).data);
      expectBitwiseEqual('its gradient', entry(packed.dInitialState).data, entry(item.dFinalState!).data);
      continue;
    }
    const alone = await run(withStates(withTokens({ ...item, options }, tokens), entry));
    for (const name of TOKEN_RESULTS) {
      expectBitwiseEqual(`${name} of sequence ${n}`, tokens(packed[name]).data, alone[name].data);
    }
    for (const name of STATE_RESULTS) {
      expectBitwiseEqual(`${name} of sequence ${n}`, entry(packed[name]).data, alone[name].data);
    }
  }
}

/** States with values first give what states with keys first give; `tolerance` is relative to the largest. */
export async function expectSameLayouts(run: Run, item: KdaCase, tolerance: number): Promise<void> {
  const valuesFirst = withStates({ ...item, options: { ...item.options, stateLayout: 'vk' } }, transposed);
  const [kv, vk] = [await run(item), await run(valuesFirst)];
  const turned = { ...vk, finalState: transposed(vk.finalState), dInitialState: transposed(vk.dInitialState) };
  expect(failuresOf(turned, kv, (name) => ({ maxAbs: tolerance * maxAbs(kv[name].data) }))).toEqual([]);
}

/** The case with `map` over its states. */
function withStates(item: KdaCase, map: (tensor: Float64Tensor) => Float64Tensor): KdaCase {
  const { dFinalState, options } = item;
  return {
    ...item,
    dFinalState: map(dFinalState!),
    options: { ...options, initialState: map(options.initialState!) },
  };
}

/** The last two dimensions exchanged. */
function transposed({ shape, data }: Float64Tensor): Float64Tensor {
  const [rows, columns] = shape.slice(-2) as [number, number];
  const result = new Float64Array(data.length);
  for (let at = 0; at < data.length; at++) {
    const [block, i, j] = [Math.floor(at / (rows * columns)), Math.floor(at / columns) % rows, at % columns];
    result[(block * columns + j) * rows + i] = data[at];
  }
  return { shape: [...shape.slice(0, -2), columns, rows], data: result };
}
