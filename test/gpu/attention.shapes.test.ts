import { attentionBackward, attentionForward, type AttentionOptions, type Tensor } from '../../lib';
import type { AttentionReferenceOptions } from '../../lib/reference/attention';
import { failuresOf } from '../support/compare';
import { describeCuda, Pool, readValues, valuesOf, type Twin } from '../support/cuda';
import type { Operand } from '../support/dtypes';
import { Random } from '../support/random';
import type { AttentionResults } from '../support/run';
import { attentionNaturals, randomTolerance } from '../support/tolerance';

// The shapes that FlashAttention's public tests cover, dense and packed, forward and backward. Expected values: the CPU
// backend in float32 on the same rounded inputs, which its own tests compare with the float64 reference.

const LENGTHS = [
  ...[[1, 1], [64, 128], [128, 192], [256, 256], [239, 1], [799, 3], [113, 203], [113, 128], [128, 217], [113, 211]],
  ...[[108, 256], [256, 512], [384, 256], [640, 128], [512, 256], [1024, 1024], [1023, 1024], [1024, 1023]],
  ...[[4096, 4096], [4224, 4224]],
] as [number, number][]; // prettier-ignore
const DIMS = [64, 96, 128, 192, 256];
const HEADS = [[4, 4], [6, 2], [4, 1]] as const; // prettier-ignore
const DTYPES = ['bfloat16', 'float16'] as const;
const LARGE = 2 ** 20; // pairs of a query and a key
const MOST_PRODUCTS = 1e7;

interface Shape {
  readonly q: readonly number[];
  readonly k: readonly number[];
  readonly dtype: Exclude<Operand, 'float32'>;
}

async function failures(
  pool: Pool,
  { q, k, dtype }: Shape,
  options: AttentionOptions,
  deterministic: boolean,
): Promise<string[]> {
  const twins = [q, k, k, q].map((shape) => pool.twin(shape, dtype));
  const run = (side: keyof Twin) => {
    const [queries, keys, values, dOut] = twins.map((twin) => twin[side]) as [Tensor, Tensor, Tensor, Tensor];
    const { out, lse } = attentionForward(queries, keys, values, options);
    return { out, lse, ...attentionBackward(dOut, queries, keys, values, out, lse, { ...options, deterministic }) };
  };
  const [actual, expected] = [await readValues(run('gpu')), await readValues(run('cpu'))];
  const naturals = await naturalsOf(twins, dtype, options);
  for (const { gpu, cpu } of twins) [gpu, cpu].forEach((tensor) => tensor.dispose());
  return failuresOf(actual, expected, (name) =>
    randomTolerance(name === 'lse' ? 'float32' : dtype, expected[name], naturals[name]),
  );
}

/** Natural sizes where rows may see so few keys that gradients are sums of terms that cancel; too slow elsewhere. */
async function naturalsOf(
  twins: readonly Twin[],
  dtype: Shape['dtype'],
  options: AttentionOptions,
): Promise<Partial<Record<keyof AttentionResults, number>>> {
  const [{ cpu: queries }, { cpu: keys }] = twins;
  if (queries.size * keys.shape.at(-3)! > MOST_PRODUCTS) return {};
  const [q, k, v, dOut] = await Promise.all(twins.map(({ cpu }) => valuesOf(cpu)));
  const item = { title: '', inputs: { q, k, v }, dOut, options: options as AttentionReferenceOptions };
  return attentionNaturals(item, dtype);
}

function titleOf({ q, k, dtype }: Shape, options: AttentionOptions): string {
  return `q [${q.join()}] k [${k.join()}] ${dtype} ${JSON.stringify(options)}`;
}

/** Every pair of lengths with every head dimension, large ones with some; masks, heads, dtypes and softcap take turns. */
const DENSE = LENGTHS.flatMap(([rowsQ, rowsK], pair) =>
  DIMS.flatMap((dim, n) => {
    const turn = pair + n;
    if (rowsQ * rowsK > LARGE && turn % 2 === 1) return [];
    const masks = [{}, { causal: true }, { window: [Math.floor(rowsK / 3), Math.floor(rowsK / 7)] as const }];
    const mask = masks[turn % 3];
    const [heads, kvHeads] = HEADS[(pair + 2 * n) % 3];
    const dtype = DTYPES[(turn + Math.floor(n / 2)) % 2];
    const options = { ...mask, ...(turn % 5 === 0 && { softcap: 15 }) };
    const batch = rowsQ * rowsK > LARGE ? 1 : 2;
    const shape = { q: [batch, rowsQ, heads, dim], k: [batch, rowsK, kvHeads, dim], dtype };
    return [[titleOf(shape, options), (pair + Math.floor(n / 2)) % 2 === 0, shape, options] as const];
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
      { window: [random.integer(1, longest), random.integer(1, longest)] as const },
    ]),
  };
  const shape = {
    q: [rows(offsets.cuSeqlensQ), heads, dim],
    k: [rows(offsets.cuSeqlensK), kvHeads, dim],
    dtype,
  };
  return [titleOf(shape, options), random.chance(0.5), shape, options] as const;
}

describeCuda("attention on the public tests' shapes", () => {
  const pool = new Pool('attention shapes');
  test.each(DENSE)('%s, deterministic %s', async (_title, deterministic, shape, options) => {
    expect(await failures(pool, shape, options, deterministic)).toEqual([]);
  });
});

describeCuda('attention on packed sequences', () => {
  const pool = new Pool('packed attention shapes');
  const random = new Random('packed lengths');
  test.each(Array.from({ length: 40 }, () => packed(random)))(
    '%s, deterministic %s',
    async (_title, deterministic, shape, options) => {
      expect(await failures(pool, shape, options, deterministic)).toEqual([]);
    },
  );
});
