import { attention, type TfjsAttentionOptions } from '../../lib/integrations/tfjs';
import type { AttentionReferenceOptions } from '../../lib/reference/attention';
import { Random } from '../support/random';
import { attentionNaturals } from '../support/tolerance';
import { naiveAttention } from './naive';
import { expectSameWithGradients, randomTensor, type Named, type Naturals } from './support';

interface Case {
  readonly q: number[];
  readonly k: number[];
  /** Default: like k. */
  readonly v?: number[];
  readonly sink?: boolean;
  readonly options?: Omit<TfjsAttentionOptions & AttentionReferenceOptions, 'sink'>;
}

const CASES: Record<string, Case> = {
  'no options': { q: [2, 9, 3, 8], k: [2, 9, 3, 8] },
  causal: { q: [1, 20, 2, 16], k: [1, 20, 2, 16], options: { causal: true } },
  'fewer queries than keys': { q: [1, 5, 2, 8], k: [1, 12, 2, 8], options: { causal: true } },
  'rows that see nothing': { q: [1, 9, 2, 8], k: [1, 5, 2, 8], options: { causal: true } },
  window: { q: [1, 17, 2, 8], k: [1, 17, 2, 8], options: { window: [3, 2], deterministic: true } },
  'window open to the left': { q: [1, 13, 1, 8], k: [1, 13, 1, 8], options: { window: [Infinity, 1] } },
  scale: { q: [1, 7, 2, 8], k: [1, 7, 2, 8], options: { softmaxScale: 0.7 } },
  softcap: { q: [1, 11, 2, 8], k: [1, 11, 2, 8], options: { softcap: 1.5, softmaxScale: 1 } },
  sink: { q: [2, 10, 3, 8], k: [2, 10, 3, 8], sink: true, options: { causal: true } },
  'grouped heads, another value width': { q: [1, 9, 4, 8], k: [1, 9, 2, 8], v: [1, 9, 2, 12], sink: true },
  'packed sequences': {
    ...{ q: [14, 2, 8], k: [12, 2, 8], sink: true },
    options: { causal: true, cuSeqlensQ: [0, 5, 14], cuSeqlensK: [0, 5, 12] },
  },
};

// Expected values: the formula in operations of TensorFlow.js on its cpu backend, and the gradients that it derives.
test.each(Object.entries(CASES))('attention equals the naive formula: %s', (name, { q, k, v = k, sink, options }) => {
  const random = new Random(name);
  const inputs: Named = {
    ...{ q: randomTensor(random, q), k: randomTensor(random, k), v: randomTensor(random, v) },
    ...(sink && { sink: randomTensor(random, [q.at(-2)!]) }),
  };
  const withSink = ({ sink }: Named): TfjsAttentionOptions => ({ ...options, ...(sink && { sink }) });
  expectSameWithGradients(
    name,
    inputs,
    (x) => [attention(x['q'], x['k'], x['v'], { ...withSink(x), device: 'cpu', dtype: 'float32' })],
    (x) => [naiveAttention(x['q'], x['k'], x['v'], withSink(x))],
    { naturals: naturalsOf(options) },
  );
});

/** Of a sink's gradient, which is a sum over the queries. */
function naturalsOf(options: Case['options']): Naturals {
  return ({ q, k, v, sink }, [dOut]): Record<string, number> => {
    if (!sink) return {};
    const item = { title: '', inputs: { q, k, v }, dOut, options: { ...options, sink } };
    return { sink: attentionNaturals(item, 'float32').dSink };
  };
}

// A rounded operand is off by up to 2^-9 of itself; sums over random signs keep results and gradients near that.
test('attention in bfloat16 is close to the float32 formula', () => {
  const random = new Random('bfloat16');
  const inputs = Object.fromEntries(['q', 'k', 'v'].map((name) => [name, randomTensor(random, [1, 24, 2, 16])]));
  expectSameWithGradients(
    'bfloat16',
    inputs,
    (x) => [attention(x['q'], x['k'], x['v'], { causal: true, device: 'cpu', dtype: 'bfloat16' })],
    (x) => [naiveAttention(x['q'], x['k'], x['v'], { causal: true })],
    { rounding: 0.02 },
  );
});
