import { attentionBackward, attentionForward, Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { sliceOf } from '../support/arrays';
import { drawAttentionCase, roundedAttentionCase, type AttentionCase } from '../support/attentionCases';
import { attentionFailures } from '../support/check';
import { expectBitwiseEqual, expectClose, expectZeroRows, failuresOf, maxAbs } from '../support/compare';
import { CUDA, describeCuda, Pool, readValues, type Twin } from '../support/cuda';
import { expectError } from '../support/expectError';
import { Random } from '../support/random';
import { fromTensor, poison, runAttention, toTensor, type AttentionResults } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// What broke other implementations of the backward, one test a report. Expected values: the float64 reference, the CPU
// backend in float32 where that would take minutes, or what a test states.

const GRADIENTS = ['dq', 'dk', 'dv'] as const;
const DIMS = [64, 128, 256];
/** Head dimensions of every tile, and whether the backward is deterministic. */
const MODES = [[64, false], [96, true], [128, false], [128, true], [192, true], [256, false], [256, true]] as const; // prettier-ignore

const drawCase = (...args: Parameters<typeof drawAttentionCase>) =>
  roundedAttentionCase(drawAttentionCase(...args), 'bfloat16');
const run = (item: AttentionCase, deterministic = false) => runAttention(item, 'bfloat16', CUDA, deterministic);

/** Gradients of bfloat16 operands on the GPU, and of the same values in float32 on the CPU. */
async function runTwins(
  [q, k, v, dOut]: readonly Twin[],
  options: Parameters<typeof attentionForward>[3],
): Promise<Record<keyof Twin, Pick<AttentionResults, 'dq' | 'dk' | 'dv'>>> {
  const gradients = async (side: keyof Twin) => {
    const { out, lse } = attentionForward(q[side], k[side], v[side], options);
    return readValues({ ...attentionBackward(dOut[side], q[side], k[side], v[side], out, lse, options) });
  };
  return { gpu: await gradients('gpu'), cpu: await gradients('cpu') };
}

describeCuda('attention backward, what broke others', () => {
  const pool = new Pool('backward reports');

  test.each([false, true])(
    'flash-attention 1254, 2562: packed backward with empty segments, causal %s',
    async (causal) => {
      const some = [0, 0, 1208, 2048, 2048];
      const more = [0, 2538, 4280, 5120, 8192];
      const twins = [[2048, 4], [8192, 1], [8192, 1], [2048, 4]].map((rows) => pool.twin([...rows, 256], 'bfloat16')); // prettier-ignore
      const options = { causal, cuSeqlensQ: some, cuSeqlensK: more };
      const { gpu, cpu } = await runTwins(twins, options);
      expect(failuresOf(gpu, cpu, (name) => randomTolerance('bfloat16', cpu[name]))).toEqual([]);
      for (const name of ['dk', 'dv'] as const) {
        expectZeroRows(name, gpu[name], 0, 2538); // keys without queries
        expectZeroRows(name, gpu[name], 5120, 8192);
      }
    },
  );

  test.each([false, true])('flash-attention 1254, 2562: queries without keys, causal %s', async (causal) => {
    const options = { causal, cuSeqlensQ: [0, 79, 134, 160, 256], cuSeqlensK: [0, 0, 38, 64, 64] };
    const item = drawCase(new Random(`empty keys ${causal}`), [256, 4, 256], [64, 1, 256], options);
    const { out, dq } = await run(item);
    for (const [name, result] of Object.entries({ out, dq })) {
      expectZeroRows(name, result, 0, 79);
      expectZeroRows(name, result, 160, 256);
    }
    expect(await attentionFailures(item, 'bfloat16', CUDA)).toEqual([]);
  });

  // In units of log2 it is more than a float32 holds.
  test.each([2.4e38, -2.4e38])('a sink of %d beside rows that see no key', async (logit) => {
    const sink = { shape: [2], data: Float64Array.of(logit, 0.5) };
    const item = drawCase(new Random(`sink ${logit}`), [1, 90, 2, 64], [1, 50, 1, 64], { causal: true, sink });
    expect(await attentionFailures(item, 'bfloat16', CUDA)).toEqual([]);
  });

  test.each(DIMS)('flash-attention 2324, 1228: rows past the end are exactly 0, D %i', async (dim) => {
    const cu = [0, 3, 8];
    const options = { cuSeqlensQ: cu, cuSeqlensK: cu, causal: true };
    const item = drawCase(new Random(`past the end ${dim}`), [300, 2, dim], [200, 2, dim], options);
    for (let n = 0; n < 3; n++) {
      const { dq, dk, dv } = await run(item);
      expectZeroRows('dq', dq, 8, 300);
      expectZeroRows('dk', dk, 8, 200);
      expectZeroRows('dv', dv, 8, 200);
    }
    expect(await attentionFailures(item, 'bfloat16', CUDA)).toEqual([]);
  });

  test.each(MODES)(
    'keys and rows that the mask leaves alone get exactly 0, D %i, deterministic %s',
    async (dim, det) => {
      const random = new Random(`outside the band ${dim} ${det}`);
      const few = drawCase(random, [1, 100, 4, dim], [1, 300, 2, dim], { causal: true, window: [50, 0] });
      const { dk, dv } = await run(few, det); // query i stands at key i + 200
      for (const [name, { data }] of Object.entries({ dk, dv })) {
        const keys = { shape: [300, 2, dim], data };
        expectZeroRows(name, keys, 0, 150);
        for (let key = 150; key < 300; key++) {
          const row = sliceOf(keys, 0, key, key + 1).data; // single elements may cancel to 0
          expect({ name, key, zero: row.every((value) => value === 0) }).toEqual({ name, key, zero: false });
        }
      }
      expect(await attentionFailures(few, 'bfloat16', CUDA)).toEqual([]);
      const many = drawCase(random, [1, 300, 4, dim], [1, 100, 2, dim], { causal: true });
      const { out, dq } = await run(many, det); // query i stands at key i - 200
      for (const [name, { data }] of Object.entries({ out, dq })) {
        expectZeroRows(name, { shape: [300, 4, dim], data }, 0, 200);
        expect(data.some(Number.isNaN)).toBe(false);
      }
    },
  );

  test.each(MODES)(
    'flash-attention 1745, 2374: NaN stays in its sequence, D %i, deterministic %s',
    async (dim, det) => {
      const cu = [0, 40, 310, 450];
      const shape = [600, 1, dim];
      const options = { cuSeqlensQ: cu, cuSeqlensK: cu };
      const item = drawCase(new Random(`NaN neighbours ${dim} ${det}`), shape, shape, options);
      const clean = await run(item, det);
      const withNaN = ({ data }: Float64Tensor): Float64Tensor => ({
        shape,
        data: data.map((value, at) => {
          const row = Math.floor(at / dim);
          return (row >= 40 && row < 310) || row >= 450 ? NaN : value;
        }),
      });
      const { q, k, v } = item.inputs;
      const inputs = { q: withNaN(q), k: withNaN(k), v: withNaN(v) };
      const dirty = await run({ ...item, inputs, dOut: withNaN(item.dOut) }, det);
      for (const name of GRADIENTS) {
        for (const [start, end] of [
          [0, 40],
          [310, 450],
        ] as const) {
          const [actual, expected] = [dirty, clean].map((results) => sliceOf(results[name], 0, start, end));
          // Outside the deterministic mode, key blocks add to dq in any order.
          if (det || name !== 'dq') expectBitwiseEqual(`${name} from ${start}`, actual.data, expected.data);
          else expectClose(name, actual, expected, { maxAbs: 2 ** -7 * maxAbs(expected.data) });
        }
        expectZeroRows(name, dirty[name], 450, 600);
        expect(sliceOf(dirty[name], 0, 40, 310).data.every(Number.isNaN)).toBe(true);
      }
    },
  );

  test('flash-attention 1745: a NaN key reaches no gradient that does not depend on it', async () => {
    const shape = [1, 700, 2, 128];
    const item = drawCase(new Random('hidden NaN'), shape, shape, { causal: true, window: [100, 0] });
    const { q, k, v } = item.inputs;
    const spoiled = { shape, data: k.data.map((value, at) => (Math.floor(at / 256) === 333 ? NaN : value)) };
    const [clean, dirty] = [await run(item, true), await run({ ...item, inputs: { q, k: spoiled, v } }, true)];
    for (const name of GRADIENTS) {
      // A tile may be read whole; what lies whole tiles away is as it was.
      for (const [start, end] of [
        [0, 128],
        [576, 700],
      ] as const) {
        const [actual, expected] = [dirty, clean].map((results) => sliceOf(results[name], 1, start, end).data);
        expectBitwiseEqual(`${name} from ${start}`, actual, expected);
      }
    }
    expect(sliceOf(dirty.dq, 1, 333, 434).data.every(Number.isNaN)).toBe(true);
  });

  test.each(['bfloat16', 'float16'] as const)(
    'flash-attention 2466: B 2, S 1024, H 32, D 128, causal, softcap 10, %s',
    async (dtype) => {
      const twins = Array.from({ length: 4 }, () => pool.twin([2, 1024, 32, 128], dtype));
      const { gpu, cpu } = await runTwins(twins, { causal: true, softcap: 10, softmaxScale: 1 });
      expect(failuresOf(gpu, cpu, (name) => randomTolerance(dtype, cpu[name]))).toEqual([]);
    },
  );

  describe('flash-attention 355, 91, 2777: strides of dOut', () => {
    const random = new Random('strides of dOut');
    const options = { causal: true, deterministic: true };
    const make = (shape: readonly number[]) => toTensor(drawCase(random, shape, shape, {}).inputs.q, 'bfloat16', CUDA);

    /** Both in the deterministic mode. */
    async function expectSameGradients(dOut: Tensor, operands: [Tensor, Tensor, Tensor]): Promise<void> {
      const dense = operands.map((operand) => operand.contiguous()) as [Tensor, Tensor, Tensor];
      const { out, lse } = attentionForward(...dense, { causal: true });
      const actual = attentionBackward(dOut, ...operands, out, lse, options);
      const expected = attentionBackward(dOut.contiguous(), ...dense, out, lse, options);
      for (const name of GRADIENTS) {
        expectBitwiseEqual(name, (await fromTensor(actual[name])).data, (await fromTensor(expected[name])).data);
        expect(maxAbs((await fromTensor(actual[name])).data)).toBeGreaterThan(0);
      }
    }
    const three = () => [0, 1, 2].map(() => make([2, 150, 4, 64])) as [Tensor, Tensor, Tensor];

    test.each([
      ['all', [1, 1, 1, 64]],
      ['heads', [2, 150, 1, 64]],
      ['batch and rows', [1, 1, 4, 64]],
    ])('expanded over %s (stride 0)', async (_, shape) => {
      const dOut = make(shape).expand([2, 150, 4, 64]);
      expect(dOut.strides).toContain(0);
      await expectSameGradients(dOut, three());
    });

    // At multiples of 16 bytes, which the kernels read as they lie, and elsewhere, where they need copies.
    test.each([8, 3])('a slice from column %i of a larger tensor', async (start) => {
      await expectSameGradients(make([2, 150, 4, 96]).slice(3, start, start + 64), three());
    });

    test('a transposed view of [B, H, S, D], as the operands are', async () => {
      const [dOut, ...operands] = [0, 1, 2, 3].map(() => make([2, 4, 150, 64]).transpose(1, 2));
      await expectSameGradients(dOut, operands as [Tensor, Tensor, Tensor]);
    });

    test('stride 0 in the last dimension (from a sum) is refused, and its copy works', async () => {
      const dOut = make([1, 1, 1, 1]).expand([2, 150, 4, 64]);
      const operands = three();
      const { out, lse } = attentionForward(...operands);
      expectError(
        () => attentionBackward(dOut, ...operands, out, lse),
        'ERR_OUT_OF_RANGE',
        'attentionBackward: dOut must have stride 1 in its last dimension, got 0; call contiguous() first',
      );
      await expectSameGradients(dOut.contiguous(), operands);
    });
  });

  test.each(DIMS)(
    'flash-attention 1133: window (S, 0), window (S - 1, 0) and causal are equal within rounding, D %i',
    async (dim) => {
      const item = drawCase(new Random(`windows ${dim}`), [1, 390, 2, dim], [1, 390, 2, dim], { causal: true });
      const causal = await run(item);
      for (const left of [390, 389]) {
        const windowed = await run({ ...item, options: { window: [left, 0] } });
        expect(failuresOf(windowed, causal, (name) => ({ maxAbs: 2 ** -7 * maxAbs(causal[name].data) }))).toEqual([]);
      }
    },
  );

  test.each(DIMS)('flash-attention 1570: a sequence alone and packed, deterministic, D %i', async (dim) => {
    const cu = [0, 200, 201, 331, 395];
    const shape = [395, 2, dim];
    const item = drawCase(new Random(`alone ${dim}`), shape, shape, { causal: true, cuSeqlensQ: cu, cuSeqlensK: cu });
    const together = await run(item, true);
    for (const [n, start] of cu.slice(0, -1).entries()) {
      const length = cu[n + 1] - start;
      const part = (tensor: Float64Tensor) => ({
        shape: [1, length, 2, dim],
        data: sliceOf(tensor, 0, start, start + length).data,
      });
      const { q, k, v } = item.inputs;
      const inputs = { q: part(q), k: part(k), v: part(v) };
      const alone = await run({ ...item, inputs, dOut: part(item.dOut), options: { causal: true } }, true);
      for (const name of GRADIENTS) {
        // A single key gets and gives nothing but rounding: beside the gradients of all.
        expectClose(name, part(together[name]), alone[name], randomTolerance('bfloat16', together[name]));
      }
    }
  });

  test('GLM-5.3 4: operands, out and lse are bit-identical after the call', async () => {
    const item = drawCase(new Random('inputs'), [1, 300, 4, 128], [1, 300, 2, 128], { causal: true });
    const [q, k, v, dOut] = [...Object.values(item.inputs), item.dOut].map((tensor: Float64Tensor) =>
      toTensor(tensor, 'bfloat16', CUDA),
    );
    const { out, lse } = attentionForward(q, k, v, { causal: true });
    const tensors = [dOut, q, k, v, out, lse];
    const before = await Promise.all(tensors.map((tensor) => tensor.data()));
    await attentionBackward(dOut, q, k, v, out, lse, { causal: true }).dq.data();
    for (const [n, tensor] of tensors.entries()) expectBitwiseEqual('operand', await tensor.data(), before[n]);
  });

  test.each([
    ['no keys', 5, 0],
    ['no queries', 0, 5],
  ])('%s: all gradients are exactly 0', async (_, rowsQ, rowsK) => {
    const sink = toTensor({ shape: [2], data: Float64Array.of(0.5, -3) }, 'float32', CUDA);
    const [q, k] = [rowsQ, rowsK].map((rows) => Tensor.from(new Float32Array(rows * 128).fill(1), [1, rows, 2, 64], { dtype: 'bfloat16', device: CUDA })); // prettier-ignore
    const { out, lse } = attentionForward(q, k, k, { sink });
    poison([q.shape, k.shape, [2]], ['bfloat16', 'float32'], CUDA);
    const { dq, dk, dv, dSink } = attentionBackward(q, q, k, k, out, lse, { sink });
    for (const [name, tensor] of Object.entries({ dq, dk, dv, dSink: dSink! })) {
      const { data } = await fromTensor(tensor);
      expectBitwiseEqual(name, data.map(Math.abs), new Float64Array(data.length));
    }
  });
});
