import { systemInfo } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { attentionReference, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { withCpu } from '../support/cpu';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import { runAttention, type AttentionResults } from '../support/run';

// A NaN reaches what depends on it by the formulas, and nothing else. Expected values: where the float64 reference is NaN;
// elsewhere the same call without the NaN.

const DTYPES: readonly Operand[] = ['float32', 'float16', 'bfloat16'];

/** A copy with NaN in one element of the first head's row of a token: [1, tokens, heads, dim]. */
function poisoned({ shape, data }: Float64Tensor, token: number): Float64Tensor {
  const [heads, dim] = shape.slice(2) as [number, number];
  const copy = data.slice();
  copy[token * heads * dim + Math.floor(dim / 2)] = NaN;
  return { shape, data: copy };
}

/** Fails unless NaN is where it is expected and all other elements are `same` as without it. */
function expectContained<Name extends string>(
  actual: Record<Name, Float64Tensor>,
  reference: Record<Name, Float64Tensor>,
  clean: Record<Name, Float64Tensor>,
  same: (name: Name, actual: number, clean: number) => boolean,
): void {
  for (const name of Object.keys(reference) as Name[]) {
    reference[name].data.forEach((expected, at) => {
      const got = actual[name].data[at];
      if (Number.isNaN(expected) ? Number.isNaN(got) : same(name, got, clean[name].data[at])) return;
      throw new Error(`${name}: element ${at} of [${reference[name].shape.join(', ')}] is ${got}, not ${expected}`);
    });
  }
}

describe.each([
  ['causal', { causal: true }, [150, 150]],
  ['window', { window: [20, 9] }, [131, 170]],
  ['window and softcap', { causal: true, window: [70, 0], softcap: 5 }, [90, 75]],
] as const)('attention, %s', (title, options, [Sq, Sk]) => {
  const random = new Random(`attention containment ${title}`);
  const item: AttentionCase = {
    title,
    inputs: {
      q: random.tensor([1, Sq, 2, 40]),
      k: random.tensor([1, Sk, 1, 40]),
      v: random.tensor([1, Sk, 1, 24]),
    },
    dOut: random.tensor([1, Sq, 2, 24]),
    options,
  };
  const targets = (['q', 'k', 'v', 'dOut'] as const).map((target) => {
    const { inputs, dOut } = item;
    const source = target === 'dOut' ? dOut : inputs[target];
    const bad = poisoned(source, random.integer(0, source.shape[1] - 1));
    const dirty = target === 'dOut' ? { ...item, dOut: bad } : { ...item, inputs: { ...inputs, [target]: bad } };
    return [target, dirty, attentionReference(dirty) as AttentionResults] as const;
  });

  describe.each(systemInfo().cpu.instructionSets)('%s', (cpuInstructionSet) => {
    test.each(DTYPES)('NaN in q, k, v or dOut, %s', async (dtype) => {
      const run = (next: AttentionCase) =>
        withCpu({ cpuInstructionSet }, () => runAttention(roundedAttentionCase(next, dtype), dtype));
      const clean = await run(item);
      for (const [, dirty, reference] of targets) {
        expectContained(await run(dirty), reference, clean, (_, got, before) => Object.is(got, before));
      }
    });
  });
});
