import { attentionBackward, attentionForward, Tensor, type AttentionBackwardOptions, type DType } from '../../../lib';

// Every configuration of every kernel once, on small shapes, for compute-sanitizer to watch (scripts/gpu/sanitize.cjs).

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
  const gradients = attentionBackward(dOut, ...operands, out, lse, { ...options, deterministic });
  const results = [out, lse, ...(Object.values(gradients) as Tensor[])];
  await Promise.all(results.map((tensor) => tensor.data()));
  for (const tensor of [...operands, dOut, ...results]) tensor.dispose();
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
  .then(conversions)
  .then(() => process.stdout.write('done\n'));
