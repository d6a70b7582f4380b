import {
  attentionBackward,
  attentionForward,
  memoryStats,
  Stream,
  Tensor,
  type AttentionOptions,
  type ErrorCode,
} from '../../lib';
import { expectError } from '../support/expectError';
import { settledStats } from '../support/settled';

// Each refusal: its code, its message, and that nothing was allocated.

const [B, Sq, Sk, H, Hkv, D, Dv] = [2, 5, 7, 4, 2, 8, 6];

interface Arguments {
  q: Tensor;
  k: Tensor;
  v: Tensor;
  options: AttentionOptions & Record<string, unknown>;
}

type Refusal = [title: string, change: (args: Arguments) => void, code: ErrorCode, message: string | RegExp];

const zeros = (...shape: number[]) => Tensor.zeros(shape);
const disposedTensor = (...shape: number[]) => {
  const tensor = Tensor.zeros(shape);
  tensor.dispose();
  return tensor;
};

const TYPE = 'ERR_INVALID_ARG_TYPE';
const RANGE = 'ERR_OUT_OF_RANGE';

const tensors: Refusal[] = [
  ['q is missing', (a) => (a.q = undefined as never), TYPE, 'q must be a Tensor, got undefined'],
  ['q is a typed array', (a) => (a.q = new Float32Array(4) as never), TYPE, 'q must be a Tensor, got Float32Array'],
  ['k is null', (a) => (a.k = null as never), TYPE, 'k must be a Tensor, got null'],
  ['q is int32', (a) => (a.q = a.q.to({ dtype: 'int32' })), TYPE, 'q must be float32, float16 or bfloat16, got int32'],
  ['k has another dtype', (a) => (a.k = a.k.to({ dtype: 'float16' })), TYPE, 'k must be float32, got float16'],
  ['v has another dtype', (a) => (a.v = a.v.to({ dtype: 'bfloat16' })), TYPE, 'v must be float32, got bfloat16'],
  ['q was disposed', (a) => (a.q = disposedTensor(B, Sq, H, D)), 'ERR_WARPGRAD_DISPOSED', 'q was disposed'],
  ['v was disposed', (a) => (a.v = disposedTensor(B, Sk, Hkv, Dv)), 'ERR_WARPGRAD_DISPOSED', 'v was disposed'],
  [
    'q has 3 dimensions without cuSeqlens',
    (a) => (a.q = zeros(Sq, H, D)),
    RANGE,
    'q must have 4 dimensions [B, S, H, D], got shape [5, 4, 8]',
  ],
  [
    'k has another batch',
    (a) => (a.k = zeros(3, Sk, Hkv, D)),
    RANGE,
    'k must have shape [2, 7, 2, 8], got [3, 7, 2, 8]',
  ],
  ['k has another D', (a) => (a.k = zeros(B, Sk, Hkv, 9)), RANGE, 'k must have shape [2, 7, 2, 8], got [2, 7, 2, 9]'],
  ['v has another Sk', (a) => (a.v = zeros(B, 8, Hkv, Dv)), RANGE, 'v must have shape [2, 7, 2, 6], got [2, 8, 2, 6]'],
  ['v has other heads', (a) => (a.v = zeros(B, Sk, 4, Dv)), RANGE, 'v must have shape [2, 7, 2, 6], got [2, 7, 4, 6]'],
  [
    'the heads do not divide',
    (a) => ((a.k = zeros(B, Sk, 3, D)), (a.v = zeros(B, Sk, 3, Dv))),
    RANGE,
    'the 4 heads of q must be a multiple of the 3 heads of k',
  ],
  ['no heads', (a) => (a.q = zeros(B, Sq, 0, D)), RANGE, 'q must have at least 1 head, got shape [2, 5, 0, 8]'],
  [
    'no kv heads',
    (a) => ((a.k = zeros(B, Sk, 0, D)), (a.v = zeros(B, Sk, 0, Dv))),
    RANGE,
    'k must have at least 1 head, got shape [2, 7, 0, 8]',
  ],
  [
    'D is 257',
    (a) => ((a.q = zeros(B, Sq, H, 257)), (a.k = zeros(B, Sk, Hkv, 257))),
    RANGE,
    'the head dimension of q must be 1 to 256, got 257',
  ],
  ['Dv is 300', (a) => (a.v = zeros(B, Sk, Hkv, 300)), RANGE, 'the head dimension of v must be 1 to 256, got 300'],
  ['Dv is 0', (a) => (a.v = zeros(B, Sk, Hkv, 0)), RANGE, 'the head dimension of v must be 1 to 256, got 0'],
  [
    'the last dimension of q is not contiguous',
    (a) => (a.q = zeros(B, Sq, D, H).transpose(2, 3)),
    RANGE,
    'q must have stride 1 in its last dimension, got 4; call contiguous() first',
  ],
];

const options: Refusal[] = [
  ['options are null', (a) => (a.options = null as never), TYPE, 'options must be an object, got null'],
  ['options are a number', (a) => (a.options = 3 as never), TYPE, 'options must be an object, got 3'],
  [
    'dropoutP',
    (a) => (a.options['dropoutP'] = 0.1),
    TYPE,
    /^attention\w+: unknown option 'dropoutP'; the options are causal, /,
  ],
  ['alibi', (a) => (a.options['alibi'] = zeros(H)), TYPE, /^attention\w+: unknown option 'alibi'; the options are /],
  ['casual', (a) => (a.options['casual'] = true), TYPE, /^attention\w+: unknown option 'casual'; the options are /],
  ['causal is a number', (a) => (a.options.causal = 1 as never), TYPE, 'causal must be true or false, got 1'],
  [
    'window is a number',
    (a) => (a.options.window = 5 as never),
    TYPE,
    'window must be [left, right] such as [128, 0], got 5',
  ],
  ...['-1, 0', '1.5, 0', '1', 'NaN, 0'].map((sides): Refusal => [
    `window is [${sides}]`,
    (a) => (a.options.window = sides.split(', ').map(Number) as never),
    RANGE,
    `window must be [left, right] with whole numbers >= 0 or Infinity, got [${sides}]`,
  ]),
  [
    'softmaxScale is text',
    (a) => (a.options.softmaxScale = '1' as never),
    TYPE,
    "softmaxScale must be a number, got '1'",
  ],
  ['softmaxScale is NaN', (a) => (a.options.softmaxScale = NaN), RANGE, 'softmaxScale must be finite, got NaN'],
  ['softcap is negative', (a) => (a.options.softcap = -2), RANGE, 'softcap must be >= 0, got -2'],
  ['softcap is infinite', (a) => (a.options.softcap = Infinity), RANGE, 'softcap must be finite, got Infinity'],
  ['sink has another shape', (a) => (a.options.sink = zeros(3)), RANGE, 'sink must have shape [4], got [3]'],
  [
    'sink is float16',
    (a) => (a.options.sink = Tensor.zeros([H], { dtype: 'float16' })),
    TYPE,
    'sink must be float32, got float16',
  ],
  [
    'sink is an array',
    (a) => (a.options.sink = [0, 0, 0, 0] as never),
    TYPE,
    'sink must be a Tensor, got [0, 0, 0, 0]',
  ],
  ['sink was disposed', (a) => (a.options.sink = disposedTensor(H)), 'ERR_WARPGRAD_DISPOSED', 'sink was disposed'],
  ['stream is none', (a) => (a.options.stream = 'main' as never), TYPE, "stream must be a Stream, got 'main'"],
];

/** Packed: q [5, H, D], k and v [7, …], and offsets that end at 5 and 7. */
function packed(args: Arguments): Arguments {
  args.q = zeros(Sq, H, D);
  args.k = zeros(Sk, Hkv, D);
  args.v = zeros(Sk, Hkv, Dv);
  Object.assign(args.options, { cuSeqlensQ: [0, 2, 5], cuSeqlensK: [0, 3, 7] });
  return args;
}

const offsets: Refusal[] = [
  ['cuSeqlensQ alone', (a) => delete packed(a).options.cuSeqlensK, TYPE, 'cuSeqlensQ needs cuSeqlensK beside it'],
  ['cuSeqlensK alone', (a) => delete packed(a).options.cuSeqlensQ, TYPE, 'cuSeqlensK needs cuSeqlensQ beside it'],
  [
    'dense q',
    (a) => (packed(a).q = zeros(B, Sq, H, D)),
    RANGE,
    'q must have 3 dimensions [total, H, D], got shape [2, 5, 4, 8]',
  ],
  [
    'falling',
    (a) => (packed(a).options.cuSeqlensQ = [0, 4, 3]),
    RANGE,
    'cuSeqlensQ must not fall: entry 2 is 3 after 4',
  ],
  ['not from 0', (a) => (packed(a).options.cuSeqlensK = [1, 3, 7]), RANGE, 'cuSeqlensK must start at 0, got 1'],
  [
    'negative',
    (a) => (packed(a).options.cuSeqlensK = [0, -1, 7]),
    RANGE,
    'cuSeqlensK must not fall: entry 1 is -1 after 0',
  ],
  [
    'past the rows',
    (a) => (packed(a).options.cuSeqlensQ = [0, 2, 6]),
    RANGE,
    'cuSeqlensQ must end within the 5 rows, got 6',
  ],
  [
    'too short',
    (a) => (packed(a).options.cuSeqlensQ = [0]),
    RANGE,
    'cuSeqlensQ must have at least 2 entries, [0, end], got 1',
  ],
  [
    'empty',
    (a) => (packed(a).options.cuSeqlensQ = []),
    RANGE,
    'cuSeqlensQ must have at least 2 entries, [0, end], got 0',
  ],
  [
    'of different lengths',
    (a) => (packed(a).options.cuSeqlensK = [0, 3, 5, 7]),
    RANGE,
    'cuSeqlensQ and cuSeqlensK must have equally many entries, got 3 and 4',
  ],
  [
    'fractional',
    (a) => (packed(a).options.cuSeqlensQ = [0, 2.5, 5]),
    RANGE,
    'cuSeqlensQ must hold whole numbers below 2^31, got 2.5',
  ],
  [
    '2^31',
    (a) => (packed(a).options.cuSeqlensQ = [0, 2 ** 31]),
    RANGE,
    'cuSeqlensQ must hold whole numbers below 2^31, got 2147483648',
  ],
  [
    'text',
    (a) => (packed(a).options.cuSeqlensQ = ['0', '5'] as never),
    RANGE,
    "cuSeqlensQ must hold whole numbers below 2^31, got '0'",
  ],
  [
    'a Float32Array',
    (a) => (packed(a).options.cuSeqlensQ = Float32Array.of(0, 5) as never),
    TYPE,
    'cuSeqlensQ must be a number[], an Int32Array or an int32 CPU tensor of one dimension, got Float32Array',
  ],
  [
    'a float32 tensor',
    (a) => (packed(a).options.cuSeqlensQ = Tensor.from([0, 2, 5])),
    TYPE,
    'cuSeqlensQ must be a number[], an Int32Array or an int32 CPU tensor of one dimension, ' +
      'got a float32 tensor of 1 dimensions on cpu',
  ],
  [
    'a disposed tensor',
    (a) => {
      const tensor = Tensor.from(Int32Array.of(0, 2, 5));
      tensor.dispose();
      packed(a).options.cuSeqlensQ = tensor;
    },
    'ERR_WARPGRAD_DISPOSED',
    'cuSeqlensQ was disposed',
  ],
];

const goodArguments = (): Arguments => ({
  ...{ q: zeros(B, Sq, H, D), k: zeros(B, Sk, Hkv, D), v: zeros(B, Sk, Hkv, Dv) },
  options: {},
});

/** Memory counted alike before and after a call that is refused. */
function expectRefused(call: () => unknown, code: ErrorCode, message: string | RegExp): void {
  const { liveBytes, allocations } = settledStats();
  expectError(call, code, message);
  expect(memoryStats()).toMatchObject({ liveBytes, allocations });
}

describe.each([
  ['tensors', tensors],
  ['options', options],
  ['cuSeqlens', offsets],
])('attention refuses wrong %s', (_kind, refusals) => {
  test.each(refusals)('forward: %s', (_title, change, code, message) => {
    const args = goodArguments();
    change(args);
    const { q, k, v } = args;
    const full = typeof message === 'string' ? `attentionForward: ${message}` : message;
    expectRefused(() => attentionForward(q, k, v, args.options), code, full);
  });

  test.each(refusals)('backward: %s', (_title, change, code, message) => {
    const args = goodArguments();
    change(args);
    const { q, k, v } = args;
    const full = typeof message === 'string' ? `attentionBackward: ${message}` : message;
    const dense = args.options?.cuSeqlensQ === undefined && args.options?.cuSeqlensK === undefined;
    const out = dense ? zeros(B, Sq, H, Dv) : zeros(Sq, H, Dv);
    const lse = dense ? zeros(B, H, Sq) : zeros(H, Sq);
    expectRefused(() => attentionBackward(out, q, k, v, out, lse, args.options), code, full);
  });
});

interface BackwardArguments {
  dOut: Tensor;
  out: Tensor;
  lse: Tensor;
  options: Record<string, unknown>;
}

const backwardRefusals: [string, (args: BackwardArguments) => void, ErrorCode, string][] = [
  [
    'dOut has another shape',
    (a) => (a.dOut = zeros(B, Sq, H, D)),
    RANGE,
    'dOut must have shape [2, 5, 4, 6], got [2, 5, 4, 8]',
  ],
  [
    'dOut has another dtype',
    (a) => (a.dOut = a.dOut.to({ dtype: 'float16' })),
    TYPE,
    'dOut must be float32, got float16',
  ],
  ['dOut is missing', (a) => (a.dOut = undefined as never), TYPE, 'dOut must be a Tensor, got undefined'],
  [
    'out has another shape',
    (a) => (a.out = zeros(B, Sq, H, D)),
    RANGE,
    'out must have shape [2, 5, 4, 6], got [2, 5, 4, 8]',
  ],
  ['out was disposed', (a) => (a.out = disposedTensor(B, Sq, H, Dv)), 'ERR_WARPGRAD_DISPOSED', 'out was disposed'],
  [
    'out is not contiguous',
    (a) => (a.out = zeros(B, H, Sq, Dv).transpose(1, 2)),
    RANGE,
    'out must be contiguous; call contiguous() first',
  ],
  ['lse has another shape', (a) => (a.lse = zeros(B, Sq, H)), RANGE, 'lse must have shape [2, 4, 5], got [2, 5, 4]'],
  ['lse is float16', (a) => (a.lse = a.lse.to({ dtype: 'float16' })), TYPE, 'lse must be float32, got float16'],
  [
    'deterministic is text',
    (a) => (a.options['deterministic'] = 'yes'),
    TYPE,
    "deterministic must be true or false, got 'yes'",
  ],
];

describe('attentionBackward refuses', () => {
  test.each(backwardRefusals)('%s', (_title, change, code, message) => {
    const { q, k, v } = goodArguments();
    const args = { dOut: zeros(B, Sq, H, Dv), out: zeros(B, Sq, H, Dv), lse: zeros(B, H, Sq), options: {} };
    change(args);
    const call = () => attentionBackward(args.dOut, q, k, v, args.out, args.lse, args.options);
    expectRefused(call, code, `attentionBackward: ${message}`);
  });

  test('deterministic is no option of the forward', () => {
    const { q, k, v } = goodArguments();
    const call = () => attentionForward(q, k, v, { deterministic: true } as never);
    expectRefused(call, TYPE, /^attentionForward: unknown option 'deterministic'/);
  });
});

describe('attention accepts', () => {
  test('offsets as number[], Int32Array and int32 tensor: the same result', async () => {
    const args = packed(goodArguments());
    const { q, k, v } = args;
    const results: number[][] = [];
    const forms = [
      (x: number[]) => x,
      (x: number[]) => Int32Array.from(x),
      (x: number[]) => Tensor.from(Int32Array.from(x)),
    ];
    for (const form of forms) {
      const { lse } = attentionForward(q, k, v, { cuSeqlensQ: form([0, 2, 5]), cuSeqlensK: form([0, 3, 7]) });
      results.push([...(await lse.data())]);
    }
    expect(results[1]).toEqual(results[0]);
    expect(results[2]).toEqual(results[0]);
  });

  test.each([
    ['no queries', 0, 7],
    ['no keys', 5, 0],
    ['neither', 0, 0],
  ])('%s', async (_title, queries, keys) => {
    const [q, k, v] = [zeros(B, queries, H, D), zeros(B, keys, Hkv, D), zeros(B, keys, Hkv, Dv)];
    const { out, lse } = attentionForward(q, k, v);
    const { dq, dk, dv } = attentionBackward(out, q, k, v, out, lse);
    expect([out.shape, lse.shape]).toEqual([
      [B, queries, H, Dv],
      [B, H, queries],
    ]);
    expect([...(await out.data())].every((value) => value === 0)).toBe(true);
    expect([...(await lse.data())].every((value) => value === -Infinity)).toBe(true);
    for (const gradient of [dq, dk, dv]) expect([...(await gradient.data())].every((value) => value === 0)).toBe(true);
  });

  test('undefined for every option: the defaults', async () => {
    const { q, k, v } = goodArguments();
    const undefinedOptions = {
      causal: undefined,
      window: undefined,
      softcap: undefined,
      sink: undefined,
      stream: undefined,
    };
    const { out } = attentionForward(q, k, v, undefinedOptions);
    expect(out.shape).toEqual([B, Sq, H, Dv]);
  });

  test('a stream of its own', async () => {
    const { q, k, v } = goodArguments();
    const { out } = attentionForward(q, k, v, { stream: new Stream() });
    expect((await out.data()).length).toBe(out.size);
  });
});
