import { attentionForward, type AttentionOptions, type Tensor } from '../../lib';
import { failuresOf } from '../support/compare';
import { describeCuda, Pool, valuesOf } from '../support/cuda';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import { randomTolerance } from '../support/tolerance';

// The shapes that FlashAttention's public tests cover, dense and packed. Expected values: the CPU backend in float32 on
// the same rounded inputs, which its own tests compare with the float64 reference.

const LENGTHS = [
  ...[[1, 1], [64, 128], [128, 192], [256, 256], [239, 1], [799, 3], [113, 203], [113, 128], [128, 217], [113, 211]],
  ...[[108, 256], [256, 512], [384, 256], [640, 128], [512, 256], [1024, 1024], [1023, 1024], [1024, 1023]],
  ...[[4096, 4096], [4224, 4224]],
] as [number, number][]; // prettier-ignore
const DIMS = [64, 96, 128, 192, 256];
const HEADS = [[4, 4], [6, 2], [4, 1]] as const; // prettier-ignore
const DTYPES = ['bfloat16', 'float16'] as const;

interface Shape {
  readonly q: readonly number[];
  readonly k: readonly number[];
  readonly dtype: Exclude<Operand, 'float32'>;
}

async function failures(pool: Pool, { q, k, dtype }: Shape, options: AttentionOptions): Promise<string[]> {
  const twins = [q, k, k].map((shape) => pool.twin(shape, dtype));
  const actual = attentionForward(...(twins.map(({ gpu }) => gpu) as [Tensor, Tensor, Tensor]), options);
  const expected = attentionForward(...(twins.map(({ cpu }) => cpu) as [Tensor, Tensor, Tensor]), options);
  const values = { out: await valuesOf(expected.out), lse: await valuesOf(expected.lse) };
  const found = { out: await valuesOf(actual.out), lse: await valuesOf(actual.lse) };
  const made = [...twins.flatMap(({ gpu, cpu }) => [gpu, cpu]), actual.out, actual.lse, expected.out, expected.lse];
  for (const tensor of made) tensor.dispose();
  return failuresOf(found, values, (name) => randomTolerance(name === 'lse' ? 'float32' : dtype, values[name]));
}

/** Every pair of lengths with every head dimension; masks, heads, dtypes and softcap take turns. */
const DENSE = LENGTHS.flatMap(([rowsQ, rowsK], pair) =>
  DIMS.map((dim, n) => {
    const turn = pair + n;
    const masks = [{}, { causal: true }, { window: [Math.floor(rowsK / 3), Math.floor(rowsK / 7)] as const }];
    const mask = masks[turn % 3];
    const [heads, kvHeads] = HEADS[(pair + 2 * n) % 3];
    const dtype = DTYPES[(turn + Math.floor(n / 2)) % 2];
    const options = { ...mask, ...(turn % 5 === 0 && { softcap: 15 }) };
    const batch = rowsQ * rowsK > 2 ** 20 ? 1 : 2;
    const shape = { q: [batch, rowsQ, heads, dim], k: [batch, rowsK, kvHeads, dim], dtype };
    return [`q [${shape.q.join()}] k [${shape.k.join()}] ${dtype} ${JSON.stringify(options)}`, shape, options] as const;
  }),
);

/** Packed sequences of random lengths, some of them empty, in a buffer that is longer. */
function packed(random: Random) {
  const longest = random.pick([70, 300, 1100]);
  const count = random.integer(1, 6);
  const [heads, kvHeads] = random.pick(HEADS);
  const [dim, dtype] = [random.pick(DIMS), random.pick(DTYPES)];
  const offsets = { cuSeqlensQ: random.cuSeqlens(count, longest), cuSeqlensK: random.cuSeqlens(count, longest) };
  const rows = (cuSeqlens: readonly number[]) => cuSeqlens.at(-1)! + random.integer(1, 80);
  const options = {
    ...offsets,
    ...random.pick([
      {},
      { causal: true },
      { window: [random.integer(0, longest), random.integer(0, longest)] as const },
    ]),
  };
  const shape = {
    q: [rows(offsets.cuSeqlensQ), heads, dim],
    k: [rows(offsets.cuSeqlensK), kvHeads, dim],
    dtype,
  };
  return [`q [${shape.q.join()}] k [${shape.k.join()}] ${dtype} ${JSON.stringify(options)}`, shape, options] as const;
}

describeCuda("attention on the public tests' shapes", () => {
  const pool = new Pool('attention shapes');
  test.each(DENSE)('%s', async (_title, shape, options) => {
    expect(await failures(pool, shape, options)).toEqual([]);
  });
});

describeCuda('attention on packed sequences', () => {
  const pool = new Pool('packed attention shapes');
  const random = new Random('packed lengths');
  test.each(Array.from({ length: 40 }, () => packed(random)))('%s', async (_title, shape, options) => {
    expect(await failures(pool, shape, options)).toEqual([]);
  });
});
