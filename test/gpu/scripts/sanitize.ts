import {
  attentionBackward,
  attentionForward,
  kdaBackward,
  kdaForward,
  Stream,
  Tensor,
  type AttentionBackwardOptions,
  type DType,
  type KdaForwardOptions,
} from '../../../lib';

// Every configuration of every kernel once, on small shapes, for compute-sanitizer to watch (scripts/gpu/sanitize.cjs).
// Usage: sanitize.js TOOL

// initcheck does not see what the copy engine writes (scripts/gpu/alarms.cjs): under it, what our kernels write so is not
// read here. That all of it is written is what the suite's poisoned memory shows.
const SEES_BULK_STORES = process.argv[2] !== 'initcheck';

type Shape = readonly number[];

function fill(shape: Shape, dtype: DType): Tensor {
  const size = shape.reduce((product, extent) => product * extent, 1);
  const values = Float32Array.from({ length: size }, (_, at) => Math.sin(at * 12.9898) * 2);
  return Tensor.from(values, shape, { dtype, device: 'cuda' });
}

/** Forward and backward. */
async function attend(
  q: Shape,
  k: Shape,
  valueDim: number,
  dtype: DType,
  { deterministic, ...options }: AttentionBackwardOptions,
): Promise<void> {
  const withValues = (shape: Shape) => fill([...shape.slice(0, -1), valueDim], dtype);
  const operands = [fill(q, dtype), fill(k, dtype), withValues(k)] as [Tensor, Tensor, Tensor];
  const dOut = withValues(q);
  const { out, lse } = attentionForward(...operands, options);
  const seen = SEES_BULK_STORES ? out : withValues(q); // what the backward reads in place of `out`
  const gradients = attentionBackward(dOut, ...operands, seen, lse, { ...options, deterministic });
  const results = [out, lse, ...(Object.values(gradients) as Tensor[])];
  await finish(results, [...operands, dOut, ...(SEES_BULK_STORES ? [] : [seen])]);
}

/** Reads the results, where that is no false alarm, and disposes of all. */
async function finish(results: readonly Tensor[], others: readonly Tensor[]): Promise<void> {
  if (SEES_BULK_STORES) await Promise.all(results.map((tensor) => tensor.data()));
  else await Stream.current('cuda').synchronize();
  for (const tensor of [...results, ...others]) tensor.dispose();
}

async function attention(): Promise<void> {
  const sink = fill([4], 'float32');
  const [cuSeqlensQ, cuSeqlensK] = [
    [0, 70, 70, 201],
    [0, 33, 90, 230],
  ];
  const dims = [
    [40, 24],
    [64, 64],
    [96, 96],
    [128, 128],
    [192, 128],
    [192, 192],
    [256, 256],
  ] as const;
  for (const dtype of ['bfloat16', 'float16'] as const) {
    for (const [dim, valueDim] of dims) {
      for (const softcap of [0, 5]) {
        const shared = { softcap };
        const dense = { ...shared, causal: true, deterministic: true };
        await attend([1, 150, 4, dim], [1, 210, 2, dim], valueDim, dtype, dense);
        const packed = { ...shared, cuSeqlensQ, cuSeqlensK, window: [60, 9] as const, sink };
        await attend([210, 4, dim], [240, 4, dim], valueDim, dtype, packed);
        // Many keys a row, for which head dimension 64 has another tile.
        if (dim === 64) await attend([1, 200, 1, dim], [1, 3100, 1, dim], valueDim, dtype, shared);
      }
    }
  }
}

interface KdaSizes {
  readonly heads: readonly [H: number, HV: number];
  readonly dims: readonly [K: number, V: number];
  readonly T: number;
  readonly dtype: DType;
  readonly gateDtype: DType;
  readonly sequences: number;
}

/** Forward and backward. */
async function recur(
  sizes: KdaSizes,
  kind: 'given' | 'softplus' | 'bounded',
  options: KdaForwardOptions,
): Promise<void> {
  const { heads: [H, HV], dims: [K, V], T, dtype, gateDtype, sequences } = sizes; // prettier-ignore
  const operands = [fill([1, T, H, K], dtype), fill([1, T, H, K], dtype), fill([1, T, HV, V], dtype)] as const;
  const decays = () => {
    const values = new Float32Array(T * HV * K).fill(-0.3);
    return Tensor.from(values, [1, T, HV, K], { dtype: gateDtype, device: 'cuda' });
  };
  const g = kind === 'given' ? decays() : fill([1, T, HV, K], gateDtype);
  const beta = fill([1, T, HV], gateDtype);
  const dOut = fill([1, T, HV, V], dtype);
  const [aLog, dtBias] = [fill([HV], 'float32'), fill([HV, K], 'float32')];
  const stateDims = options.stateLayout === 'vk' ? [V, K] : [K, V];
  const [initialState, dFinalState] = [0, 1].map(() => fill([sequences, HV, ...stateDims], 'float32'));
  const gate = kind === 'given' ? undefined : { aLog, dtBias, ...(kind === 'bounded' && { lowerBound: -5 }) };
  const { saved, ...outputs } = kdaForward(...operands, g, beta, {
    ...{ ...options, qkL2Norm: true, betaLogits: true, initialState, outputFinalState: true },
    ...(gate && { gate }),
  });
  const gradients = kdaBackward(dOut, saved, { dFinalState });
  saved.dispose();
  const results = [...Object.values(outputs), ...Object.values(gradients)];
  await finish(results, [...operands, g, beta, dOut, aLog, dtBias, initialState, dFinalState]);
}

async function kda(): Promise<void> {
  const dims = [
    [40, 24],
    [64, 64],
    [64, 128],
    [128, 64],
    [128, 128],
    [64, 256],
    [128, 256],
    [256, 64],
    [192, 256],
    [256, 256],
  ] as const;
  // Sums over grouped heads and the conversions of float16 read what the copy engine wrote.
  const dtypes: readonly DType[] = SEES_BULK_STORES ? ['bfloat16', 'float16'] : ['bfloat16'];
  for (const pair of dims) {
    for (const kind of ['given', 'softplus', 'bounded'] as const) {
      const common = { dims: pair, gateDtype: 'float32', dtype: 'bfloat16' } as const;
      const heads = SEES_BULK_STORES ? ([1, 2] as const) : ([2, 2] as const);
      await recur({ ...common, heads, T: 150, sequences: 1 }, kind, { saveIntermediates: true });
      const cuSeqlens = [0, 64, 64, 70, 139];
      const packed = { ...common, heads, T: 160, gateDtype: 'bfloat16', sequences: 4 } as const;
      for (const dtype of dtypes) {
        const gateDtype = dtype === 'bfloat16' ? dtype : 'float32';
        await recur({ ...packed, dtype, gateDtype }, kind, { cuSeqlens, stateLayout: 'vk' });
      }
    }
  }
  // initcheck keeps 256 reports of a launch, and its false ones alone would be more in what follows.
  if (!SEES_BULK_STORES) return;
  const common = { dtype: 'bfloat16', gateDtype: 'bfloat16', sequences: 1 } as const;
  // A sequence so long that it is cut into segments, and that every ring is gone through many times.
  await recur({ ...common, dims: [128, 128], heads: [1, 1], T: 4100 }, 'bounded', {});
  // More pairs of a sequence and a head than there are multiprocessors, for which blocks are wider; more tiles, too.
  await recur({ ...common, dims: [128, 128], heads: [140, 140], T: 70 }, 'bounded', {});
  await recur({ ...common, dims: [256, 256], heads: [40, 40], T: 130 }, 'bounded', {});
}

async function conversions(): Promise<void> {
  const dtypes = ['float32', 'float16', 'bfloat16', 'int32'] as const;
  using source = fill([5, 6, 7, 8], 'float32');
  using view = source.transpose(0, 3).slice(1, 1, 5);
  for (const from of dtypes) {
    using first = view.to({ dtype: from });
    for (const to of dtypes) {
      using second = first.transpose(1, 2).to({ dtype: to });
      await second.data();
    }
  }
  using zeros = Tensor.zeros([1000], { device: 'cuda' });
  await zeros.data();
}

void attention()
  .then(kda)
  .then(conversions)
  .then(() => process.stdout.write('done\n'));
