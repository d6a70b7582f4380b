import {
  kdaBackward,
  kdaForward,
  memoryStats,
  Tensor,
  type ErrorCode,
  type KdaForwardOptions,
  type KdaSaved,
} from '../../lib';
import { expectError } from '../support/expectError';
import { settledStats } from '../support/settled';

// Each refusal: its code, its message, and that nothing was allocated.

const [B, T, H, HV, K, V] = [2, 5, 2, 4, 8, 6];

interface Arguments {
  q: Tensor;
  k: Tensor;
  v: Tensor;
  g: Tensor;
  beta: Tensor;
  options: KdaForwardOptions & Record<string, unknown>;
}

type Refusal = [title: string, change: (args: Arguments) => void, code: ErrorCode, message: string | RegExp];

const zeros = (...shape: number[]) => Tensor.zeros(shape);
const disposedTensor = (...shape: number[]) => {
  const tensor = Tensor.zeros(shape);
  tensor.dispose();
  return tensor;
};

const goodArguments = (): Arguments => ({
  ...{
    q: zeros(B, T, H, K),
    k: zeros(B, T, H, K),
    v: zeros(B, T, HV, V),
    g: zeros(B, T, HV, K),
    beta: zeros(B, T, HV),
  },
  options: {},
});

/** Memory counted alike before and after a call that is refused. */
function expectRefused(call: () => unknown, code: ErrorCode, message: string | RegExp): void {
  const { liveBytes, allocations } = settledStats();
  expectError(call, code, message);
  expect(memoryStats()).toMatchObject({ liveBytes, allocations });
}

const TYPE = 'ERR_INVALID_ARG_TYPE';
const RANGE = 'ERR_OUT_OF_RANGE';

const tensors: Refusal[] = [
  ['q is missing', (a) => (a.q = undefined as never), TYPE, 'q must be a Tensor, got undefined'],
  ['beta is missing', (a) => (a.beta = undefined as never), TYPE, 'beta must be a Tensor, got undefined'],
  ['g is an array', (a) => (a.g = [1, 2] as never), TYPE, 'g must be a Tensor, got [1, 2]'],
  ['q is int32', (a) => (a.q = a.q.to({ dtype: 'int32' })), TYPE, 'q must be float32, float16 or bfloat16, got int32'],
  ['k has another dtype', (a) => (a.k = a.k.to({ dtype: 'float16' })), TYPE, 'k must be float32, got float16'],
  ['v has another dtype', (a) => (a.v = a.v.to({ dtype: 'bfloat16' })), TYPE, 'v must be float32, got bfloat16'],
  ['g has a third dtype', (a) => (a.g = a.g.to({ dtype: 'float16' })), TYPE, 'g must be float32, got float16'],
  ['beta is int32', (a) => (a.beta = a.beta.to({ dtype: 'int32' })), TYPE, 'beta must be float32, got int32'],
  ['k was disposed', (a) => (a.k = disposedTensor(B, T, H, K)), 'ERR_WARPGRAD_DISPOSED', 'k was disposed'],
  ['beta was disposed', (a) => (a.beta = disposedTensor(B, T, HV)), 'ERR_WARPGRAD_DISPOSED', 'beta was disposed'],
  [
    'q has 3 dimensions',
    (a) => (a.q = zeros(T, H, K)),
    RANGE,
    'q must have 4 dimensions [B, T, H, K], got shape [5, 2, 8]',
  ],
  ['k has another K', (a) => (a.k = zeros(B, T, H, 9)), RANGE, 'k must have shape [2, 5, 2, 8], got [2, 5, 2, 9]'],
  ['v has another T', (a) => (a.v = zeros(B, 6, HV, V)), RANGE, 'v must have shape [2, 5, 4, 6], got [2, 6, 4, 6]'],
  [
    'v has 3 dimensions',
    (a) => (a.v = zeros(T, HV, V)),
    RANGE,
    'v must have 4 dimensions [B, T, HV, V], got shape [5, 4, 6]',
  ],
  ['g has the heads of q', (a) => (a.g = zeros(B, T, H, K)), RANGE, 'g must have shape [2, 5, 4, 8], got [2, 5, 2, 8]'],
  ['beta has a K', (a) => (a.beta = zeros(B, T, HV, K)), RANGE, 'beta must have shape [2, 5, 4], got [2, 5, 4, 8]'],
  [
    'the heads do not divide',
    (a) => (a.v = zeros(B, T, 3, V)),
    RANGE,
    'the 3 heads of v must be a multiple of the 2 heads of q',
  ],
  [
    'no heads',
    (a) => ((a.q = zeros(B, T, 0, K)), (a.k = zeros(B, T, 0, K))),
    RANGE,
    'q must have at least 1 head, got shape [2, 5, 0, 8]',
  ],
  ['no value heads', (a) => (a.v = zeros(B, T, 0, V)), RANGE, 'v must have at least 1 head, got shape [2, 5, 0, 6]'],
  [
    'K is 257',
    (a) => ((a.q = zeros(B, T, H, 257)), (a.k = zeros(B, T, H, 257)), (a.g = zeros(B, T, HV, 257))),
    RANGE,
    'the head dimension of q must be 1 to 256, got 257',
  ],
  ['V is 0', (a) => (a.v = zeros(B, T, HV, 0)), RANGE, 'the head dimension of v must be 1 to 256, got 0'],
  [
    'the last dimension of g is not contiguous',
    (a) => (a.g = zeros(B, T, K, HV).transpose(2, 3)),
    RANGE,
    'g must have stride 1 in its last dimension, got 4; call contiguous() first',
  ],
];

const options: Refusal[] = [
  ['options are null', (a) => (a.options = null as never), TYPE, 'options must be an object, got null'],
  [
    'chunkSize',
    (a) => (a.options['chunkSize'] = 64),
    TYPE,
    /^kdaForward: unknown option 'chunkSize'; the options are scale, /,
  ],
  ['scale is text', (a) => (a.options.scale = '1' as never), TYPE, "scale must be a number, got '1'"],
  ['scale is infinite', (a) => (a.options.scale = Infinity), RANGE, 'scale must be finite, got Infinity'],
  ['qkL2Norm is a number', (a) => (a.options.qkL2Norm = 1 as never), TYPE, 'qkL2Norm must be true or false, got 1'],
  [
    'outputFinalState is null',
    (a) => (a.options.outputFinalState = null as never),
    TYPE,
    'outputFinalState must be true or false, got null',
  ],
  ['invariant', (a) => (a.options.batchInvariant = 1 as never), TYPE, 'batchInvariant must be true or false, got 1'],
  [
    'outputChunkStates is a number',
    (a) => (a.options.outputChunkStates = 64 as never),
    TYPE,
    'outputChunkStates must be true or false, got 64',
  ],
  [
    'saveIntermediates is text',
    (a) => (a.options.saveIntermediates = 'no' as never),
    TYPE,
    "saveIntermediates must be true or false, got 'no'",
  ],
  [
    'betaLogits is a number',
    (a) => (a.options.betaLogits = 0 as never),
    TYPE,
    'betaLogits must be true or false, got 0',
  ],
  [
    'allowNegEigval without betaLogits',
    (a) => (a.options.allowNegEigval = true),
    RANGE,
    'allowNegEigval needs betaLogits: it doubles their sigmoid',
  ],
  [
    'stateLayout is unknown',
    (a) => (a.options.stateLayout = 'vkv' as never),
    TYPE,
    "stateLayout must be 'kv' or 'vk', got 'vkv'",
  ],
  ['stream is none', (a) => (a.options.stream = 1 as never), TYPE, 'stream must be a Stream, got 1'],
];

const gates: Refusal[] = [
  ['gate is empty', (a) => (a.options.gate = {}), TYPE, 'gate needs aLog (softplus gate) or lowerBound (bounded gate)'],
  [
    'gate has another key',
    (a) => (a.options.gate = { bias: 1 } as never),
    TYPE,
    /^kdaForward: gate: unknown option 'bias'/,
  ],
  [
    'gate is true',
    (a) => (a.options.gate = true as never),
    TYPE,
    /^kdaForward: gate: options must be an object, got true$/,
  ],
  ['lowerBound is 0', (a) => (a.options.gate = { lowerBound: 0 }), RANGE, 'gate.lowerBound must be below 0, got 0'],
  [
    'lowerBound is positive',
    (a) => (a.options.gate = { lowerBound: 5 }),
    RANGE,
    'gate.lowerBound must be below 0, got 5',
  ],
  [
    'lowerBound is -Infinity',
    (a) => (a.options.gate = { lowerBound: -Infinity }),
    RANGE,
    'gate.lowerBound must be finite, got -Infinity',
  ],
  [
    'aLog has another shape',
    (a) => (a.options.gate = { aLog: zeros(H) }),
    RANGE,
    'gate.aLog must have shape [4], got [2]',
  ],
  [
    'aLog is bfloat16',
    (a) => (a.options.gate = { aLog: Tensor.zeros([HV], { dtype: 'bfloat16' }) }),
    TYPE,
    'gate.aLog must be float32, got bfloat16',
  ],
  [
    'dtBias is [HV]',
    (a) => (a.options.gate = { lowerBound: -5, dtBias: zeros(HV) }),
    RANGE,
    'gate.dtBias must have shape [32], got [4]',
  ],
  [
    'dtBias is [K, HV]',
    (a) => (a.options.gate = { lowerBound: -5, dtBias: zeros(K, HV) }),
    RANGE,
    'gate.dtBias must have shape [4, 8], got [8, 4]',
  ],
  [
    'dtBias was disposed',
    (a) => (a.options.gate = { lowerBound: -5, dtBias: disposedTensor(HV, K) }),
    'ERR_WARPGRAD_DISPOSED',
    'gate.dtBias was disposed',
  ],
];

/** Packed: one batch entry of 10 rows. */
function packed(args: Arguments, cuSeqlens: unknown): void {
  Object.assign(args, {
    ...{ q: zeros(1, 10, H, K), k: zeros(1, 10, H, K), v: zeros(1, 10, HV, V) },
    ...{ g: zeros(1, 10, HV, K), beta: zeros(1, 10, HV) },
  });
  args.options.cuSeqlens = cuSeqlens as number[];
}

const states: Refusal[] = [
  [
    'initialState has another shape',
    (a) => (a.options.initialState = zeros(B, HV, V, K)),
    RANGE,
    'initialState must have shape [2, 4, 8, 6], got [2, 4, 6, 8]',
  ],
  [
    'initialState of the vk layout has another shape',
    (a) => ((a.options.initialState = zeros(B, HV, K, V)), (a.options.stateLayout = 'vk')),
    RANGE,
    'initialState must have shape [2, 4, 6, 8], got [2, 4, 8, 6]',
  ],
  [
    'initialState is float16',
    (a) => (a.options.initialState = Tensor.zeros([B, HV, K, V], { dtype: 'float16' })),
    TYPE,
    'initialState must be float32, got float16',
  ],
  [
    'as many initial states as sequences are needed',
    (a) => (packed(a, [0, 4, 10]), (a.options.initialState = zeros(1, HV, K, V))),
    RANGE,
    'initialState must have shape [2, 4, 8, 6], got [1, 4, 8, 6]',
  ],
];

const offsets: Refusal[] = [
  [
    'a batch of 2',
    (a) => (a.options.cuSeqlens = [0, 5]),
    RANGE,
    'packed sequences (cuSeqlens) need a batch of 1, got 2',
  ],
  ['falling', (a) => packed(a, [0, 4, 3]), RANGE, 'cuSeqlens must not fall: entry 2 is 3 after 4'],
  ['not from 0', (a) => packed(a, [2, 10]), RANGE, 'cuSeqlens must start at 0, got 2'],
  ['past the rows', (a) => packed(a, [0, 11]), RANGE, 'cuSeqlens must end within the 10 rows, got 11'],
  ['too short', (a) => packed(a, Int32Array.of(0)), RANGE, 'cuSeqlens must have at least 2 entries, [0, end], got 1'],
  ['fractional', (a) => packed(a, [0, 0.5]), RANGE, 'cuSeqlens must hold whole numbers below 2^31, got 0.5'],
  [
    'a BigInt64Array',
    (a) => packed(a, BigInt64Array.of(0n, 10n)),
    TYPE,
    'cuSeqlens must be a number[], an Int32Array or an int32 CPU tensor of one dimension, got BigInt64Array',
  ],
  [
    'an int32 tensor of two dimensions',
    (a) => packed(a, Tensor.from(Int32Array.of(0, 10), [1, 2])),
    TYPE,
    'cuSeqlens must be a number[], an Int32Array or an int32 CPU tensor of one dimension, ' +
      'got a int32 tensor of 2 dimensions on cpu',
  ],
];

describe.each([
  ['tensors', tensors],
  ['options', options],
  ['gates', gates],
  ['states', states],
  ['cuSeqlens', offsets],
])('kdaForward refuses wrong %s', (_kind, refusals) => {
  test.each(refusals)('%s', (_title, change, code, message) => {
    const args = goodArguments();
    change(args);
    const { q, k, v, g, beta } = args;
    const full = typeof message === 'string' ? `kdaForward: ${message}` : message;
    expectRefused(() => kdaForward(q, k, v, g, beta, args.options), code, full);
  });
});

describe('kdaBackward refuses', () => {
  const forward = (): KdaSaved => {
    const { q, k, v, g, beta } = goodArguments();
    return kdaForward(q, k, v, g, beta).saved;
  };
  const dOut = () => zeros(B, T, HV, V);

  test.each<[string, () => [Tensor, KdaSaved, object?], ErrorCode, string]>([
    [
      'dOut of another shape',
      () => [zeros(B, T, H, V), forward()],
      RANGE,
      'dOut must have shape [2, 5, 4, 6], got [2, 5, 2, 6]',
    ],
    ['dOut of float16', () => [dOut().to({ dtype: 'float16' }), forward()], TYPE, 'dOut must be float32, got float16'],
    ['a missing dOut', () => [undefined as never, forward()], TYPE, 'dOut must be a Tensor, got undefined'],
    ['saved that is none', () => [dOut(), {} as never], TYPE, 'saved must be what kdaForward gave, got Object'],
    ['no saved', () => [dOut(), undefined as never], TYPE, 'saved must be what kdaForward gave, got undefined'],
    [
      'saved that was disposed',
      () => {
        const saved = forward();
        saved.dispose();
        saved.dispose();
        return [dOut(), saved];
      },
      'ERR_WARPGRAD_DISPOSED',
      'saved was disposed',
    ],
    [
      'dFinalState of another shape',
      () => [dOut(), forward(), { dFinalState: zeros(B, HV, V, K) }],
      RANGE,
      'dFinalState must have shape [2, 4, 8, 6], got [2, 4, 6, 8]',
    ],
    [
      'an unknown option',
      () => [dOut(), forward(), { deterministic: true }],
      TYPE,
      "unknown option 'deterministic'; the options are dFinalState, stream",
    ],
  ])('%s', (_title, make, code, message) => {
    const args = make();
    expectRefused(() => kdaBackward(...args), code, `kdaBackward: ${message}`);
  });
});

describe('KDA accepts', () => {
  test('saved keeps the inputs alive, and may be used twice', async () => {
    const { q, k, v, g, beta } = goodArguments();
    const { out, saved } = kdaForward(q, k, v, g, beta, { saveIntermediates: true });
    [q, k, v, g, beta].forEach((tensor) => tensor.dispose());
    const first = await kdaBackward(out, saved).dq.data();
    const second = await kdaBackward(out, saved).dq.data();
    expect(second).toEqual(first);
    expect(saved.disposed).toBe(false);
    saved.dispose();
    expect(saved.disposed).toBe(true);
  });

  test('using disposes of saved', () => {
    const { q, k, v, g, beta } = goodArguments();
    const before = settledStats().liveBytes;
    let kept: KdaSaved;
    {
      using saved = kdaForward(q, k, v, g, beta, { saveIntermediates: true }).saved;
      kept = saved;
    }
    expect(kept.disposed).toBe(true);
    expect(settledStats().liveBytes).toBe(before + B * T * HV * V * 4); // out is left
  });

  test('no tokens: empty results, the state passed through', async () => {
    const state = Tensor.from(
      Float32Array.from({ length: HV * K * V }, (_, n) => n),
      [1, HV, K, V],
    );
    const [q, v] = [zeros(1, 0, H, K), zeros(1, 0, HV, V)];
    const { out, finalState, saved } = kdaForward(q, q, v, zeros(1, 0, HV, K), zeros(1, 0, HV), {
      initialState: state,
      outputFinalState: true,
    });
    expect((await out.data()).length).toBe(0);
    expect(await finalState.data()).toEqual(await state.data());
    const { dInitialState } = kdaBackward(out, saved, { dFinalState: state });
    expect(await dInitialState!.data()).toEqual(await state.data());
  });

  test('dDtBias has the shape of dtBias', () => {
    const { q, k, v, g, beta } = goodArguments();
    for (const shape of [[HV, K], [HV * K]]) {
      const { out, saved } = kdaForward(q, k, v, g, beta, { gate: { lowerBound: -5, dtBias: Tensor.zeros(shape) } });
      expect(kdaBackward(out, saved).dDtBias?.shape).toEqual(shape);
    }
  });
});
