import * as tf from '@tensorflow/tfjs';
import { kda, kdaWithState, type TfjsKdaOptions } from '../../lib/integrations/tfjs';
import type { KdaReferenceOptions } from '../../lib/reference/kda';
import { kdaNaturals } from '../support/kdaTolerance';
import { Random } from '../support/random';
import { naiveKda } from './naive';
import { expectSameWithGradients, randomTensor, type Named, type Naturals } from './support';

interface Case {
  readonly batch?: number;
  readonly tokens: number;
  readonly heads?: number;
  readonly valueHeads?: number;
  readonly keyDim?: number;
  readonly valueDim?: number;
  /** Optional inputs that get gradients. */
  readonly aLog?: boolean;
  readonly dtBias?: 'rows' | 'flat';
  readonly initialState?: boolean;
  readonly options?: Omit<TfjsKdaOptions & KdaReferenceOptions, 'initialState' | 'gate'> & {
    gate?: { lowerBound?: number };
  };
}

const CASES: Record<string, Case> = {
  'no options': { tokens: 21, batch: 2 },
  'several chunks': { tokens: 80, heads: 1, keyDim: 8 },
  'scale and wide values': { tokens: 18, valueDim: 24, options: { scale: 0.4 } },
  'grouped value heads': { tokens: 19, heads: 2, valueHeads: 4 },
  'normalised q and k': { tokens: 17, options: { qkL2Norm: true } },
  'beta from logits': { tokens: 17, options: { qkL2Norm: true, betaLogits: true } },
  'negative eigenvalues': { tokens: 17, options: { qkL2Norm: true, betaLogits: true, allowNegEigval: true } },
  'softplus gate': { tokens: 20, aLog: true, dtBias: 'rows', options: { gate: {} } },
  'softplus gate, flat bias': { tokens: 12, batch: 2, aLog: true, dtBias: 'flat', options: { gate: {} } },
  'bounded gate': { tokens: 20, aLog: true, dtBias: 'rows', options: { gate: { lowerBound: -3 } } },
  'bounded gate without slope': { tokens: 20, options: { gate: { lowerBound: -3 } } },
  'initial state': { tokens: 20, batch: 2, initialState: true },
  'initial state, values first': { tokens: 20, valueDim: 24, initialState: true, options: { stateLayout: 'vk' } },
  'saved intermediates': { tokens: 40, initialState: true, options: { saveIntermediates: true } },
  'packed sequences': { tokens: 30, initialState: true, options: { cuSeqlens: [0, 11, 11, 30] } },
  'all together': {
    ...{ tokens: 35, heads: 2, valueHeads: 4, valueDim: 24, aLog: true, dtBias: 'rows', initialState: true },
    options: { qkL2Norm: true, betaLogits: true, gate: {}, cuSeqlens: [0, 16, 35] },
  },
};

const PLACEMENT = { device: 'cpu', dtype: 'float32' } as const;

// Expected values: the recurrence in operations of TensorFlow.js on its cpu backend, and the gradients that it derives.
test.each(Object.entries(CASES))('kdaWithState equals the naive recurrence: %s', (name, item) => {
  const actual = (x: Named) => {
    const [operands, options] = callOf(item, x);
    return Object.values(kdaWithState(...operands, { ...options, ...PLACEMENT }));
  };
  const expected = (x: Named) => Object.values(naiveKda(...callOf(item, x)));
  expectSameWithGradients(name, inputsOf(name, item), actual, expected, { naturals: naturalsOf(item) });
});

test.each(['no options', 'all together'])('kda equals the naive recurrence: %s', (name) => {
  const item = CASES[name];
  const actual = (x: Named) => {
    const [operands, options] = callOf(item, x);
    return [kda(...operands, { ...options, ...PLACEMENT })];
  };
  const expected = (x: Named) => [naiveKda(...callOf(item, x)).out];
  expectSameWithGradients(name, inputsOf(name, item), actual, expected, { naturals: naturalsOf(item) });
});

function callOf(item: Case, { q, k, v, g, beta, initialState, ...gateTensors }: Named) {
  const { gate, ...rest } = item.options ?? {};
  const options: TfjsKdaOptions = {
    ...rest,
    ...(gate && { gate: { ...gate, ...gateTensors } }),
    ...(initialState && { initialState }),
  };
  return [[q, k, v, g, beta], options] as const;
}

/** Of the gradients of the gate's parameters, which are sums over the tokens. */
function naturalsOf({ options }: Case): Naturals {
  const gate = options?.gate;
  if (!gate) return () => ({});
  return ({ q, k, v, g, beta, initialState, ...gateTensors }, [dOut, dFinalState]) => {
    const { dALog, dDtBias } = kdaNaturals({
      ...{ title: '', inputs: { q, k, v, g, beta }, dOut, ...(dFinalState && { dFinalState }) },
      options: { ...options, gate: { ...gate, ...gateTensors }, ...(initialState && { initialState }) },
    });
    return { aLog: dALog!.largest, dtBias: dDtBias!.largest };
  };
}

function inputsOf(name: string, item: Case): Named {
  const { batch = 1, tokens, heads = 2, valueHeads = heads, keyDim = 16, valueDim = keyDim, options } = item;
  const random = new Random(name);
  const sequences = options?.cuSeqlens ? (options.cuSeqlens as number[]).length - 1 : batch;
  const state = options?.stateLayout === 'vk' ? [valueDim, keyDim] : [keyDim, valueDim];
  const short = () => random.normal() * (options?.qkL2Norm ? 1 : keyDim ** -0.5);
  const decay = () => (options?.gate ? random.normal() : -Math.abs(random.normal()) / 2);
  const strength = () => (options?.betaLogits ? random.normal() : random.uniform());
  return {
    q: randomTensor(random, [batch, tokens, heads, keyDim], short),
    k: randomTensor(random, [batch, tokens, heads, keyDim], short),
    v: randomTensor(random, [batch, tokens, valueHeads, valueDim]),
    g: randomTensor(random, [batch, tokens, valueHeads, keyDim], decay),
    beta: randomTensor(random, [batch, tokens, valueHeads], strength),
    ...(item.initialState && { initialState: randomTensor(random, [sequences, valueHeads, ...state]) }),
    ...(item.aLog && { aLog: randomTensor(random, [valueHeads], () => random.between(-2, 0.5)) }),
    ...(item.dtBias === 'rows' && { dtBias: randomTensor(random, [valueHeads, keyDim]) }),
    ...(item.dtBias === 'flat' && { dtBias: randomTensor(random, [valueHeads * keyDim]) }),
  };
}

test('a chain of calls through the state equals one call, gradients too', () => {
  const inputs = inputsOf('chain', { tokens: 40, initialState: true });
  const cut = (x: tf.Tensor, start: number, end: number) => tf.slice(x, [0, start], [x.shape[0], end - start]);
  expectSameWithGradients(
    'chain',
    inputs,
    (x) => {
      const [first, second] = [
        [0, 13],
        [13, 40],
      ].map(([start, end]) => ['q', 'k', 'v', 'g', 'beta'].map((name) => cut(x[name], start, end)));
      type Operands = Parameters<typeof kda> extends [...infer Five, unknown?] ? Five : never;
      const placement = { device: 'cpu' } as const;
      const head = kdaWithState(...(first as Operands), { ...placement, initialState: x['initialState'] });
      const tail = kdaWithState(...(second as Operands), { ...placement, initialState: head.finalState });
      return [tf.concat([head.out, tail.out], 1), tail.finalState];
    },
    (x) => {
      const { q, k, v, g, beta, initialState } = x;
      return Object.values(kdaWithState(q, k, v, g, beta, { device: 'cpu', initialState: initialState }));
    },
  );
});
