import { attentionForward, kdaBackward, kdaForward, Tensor } from '../../lib';
import { attentionForwardReference } from '../../lib/reference/attention';
import { expectBitwiseEqual, failuresOf } from '../support/compare';
import { CUDA, describeCuda } from '../support/cuda';
import { encode16 } from '../support/dtypes';
import { Random } from '../support/random';
import { readAll, toTensor } from '../support/run';
import { randomTolerance } from '../support/tolerance';

// flash-attention 2611, 1841; fla 1080: rows, strides and totals past 2^31 elements.

describeCuda('element offsets past 2^31', () => {
  test('rows far apart', async () => {
    const [ROWS, STRIDE, D] = [18, 2 ** 27, 64];
    const random = new Random('far rows');
    const values = random.tensor([1, ROWS, 1, D], () => random.integer(-3, 3));
    const buffer = new Uint16Array(ROWS * STRIDE);
    values.data.forEach((value, at) => {
      buffer[(Math.floor(at / D) + 1) * STRIDE - D + (at % D)] = encode16(value, 'bfloat16');
    });
    using whole = Tensor.from(buffer, [1, ROWS, 1, STRIDE], { dtype: 'bfloat16', device: CUDA });
    using rows = whole.slice(3, STRIDE - D, STRIDE);
    expect(rows.strides[1] * (ROWS - 1)).toBeGreaterThan(2 ** 31);
    const actual = await readAll({ ...attentionForward(rows, rows, rows) });
    const expected = attentionForwardReference(values, values, values);
    const tolerance = { out: randomTolerance('bfloat16', expected.out), lse: randomTolerance('float32', expected.lse) };
    expect(failuresOf(actual, expected, (name) => tolerance[name])).toEqual([]);
  });

  test.each(['dense', 'packed'])('4.3 million tokens, %s', async (layout) => {
    const [REPEATS, LENGTH, H, D] = [4096, 1040, 8, 64];
    const random = new Random('many tokens');
    using one = toTensor(random.tensor([1, LENGTH, H, D]), 'bfloat16', CUDA);
    using batch = one.expand([REPEATS, LENGTH, H, D]).contiguous();
    expect(batch.size).toBeGreaterThan(2 ** 31);
    using tokens = batch.view([REPEATS * LENGTH, H, D]);
    const cu = Int32Array.from({ length: REPEATS + 1 }, (_, n) => n * LENGTH);
    const options = { causal: true, ...(layout === 'packed' && { cuSeqlensQ: cu, cuSeqlensK: cu }) };
    const operand = layout === 'packed' ? tokens : batch;
    const { out, lse } = attentionForward(operand, operand, operand, options);
    const expected = attentionForward(one, one, one, { causal: true });
    using all = out.view([REPEATS, LENGTH * H * D]);
    const first = await expected.out.data();
    for (const n of [0, 1, REPEATS / 2, REPEATS - 2, REPEATS - 1]) {
      using part = all.slice(0, n, n + 1);
      expectBitwiseEqual(`out of sequence ${n}`, await part.data(), first);
    }
    using lastLse =
      layout === 'packed' ? lse.slice(1, (REPEATS - 1) * LENGTH, REPEATS * LENGTH) : lse.slice(0, REPEATS - 1, REPEATS);
    expectBitwiseEqual('lse of the last sequence', await lastLse.data(), await expected.lse.data());
    for (const tensor of [out, lse, expected.out, expected.lse]) tensor.dispose();
  });

  test('KDA of 2.2 thousand million elements', async () => {
    const [REPEATS, LENGTH, H, D] = [2048, 1040, 8, 128];
    const random = new Random('many elements of KDA');
    const one = Array.from({ length: 5 }, () => toTensor(random.tensor([1, LENGTH, H, D]), 'bfloat16', CUDA));
    const logits = toTensor(random.tensor([1, LENGTH, H]), 'bfloat16', CUDA);
    const repeated = (tensor: Tensor) => tensor.expand([REPEATS, ...tensor.shape.slice(1)]).contiguous();
    const run = ([q, k, v, g, dOut]: Tensor[], beta: Tensor) => {
      const { out, saved } = kdaForward(q, k, v, g, beta, {
        qkL2Norm: true,
        betaLogits: true,
        gate: { lowerBound: -5 },
      });
      const gradients = kdaBackward(dOut, saved);
      saved.dispose();
      return { out, ...gradients } as Record<string, Tensor>;
    };
    const expected = run(one, logits);
    const [many, manyLogits] = [one.map(repeated), repeated(logits)];
    expect(many[0].size).toBeGreaterThan(2 ** 31);
    const actual = run(many, manyLogits);
    for (const [name, tensor] of Object.entries(expected)) {
      const first = await tensor.data();
      for (const n of [0, 1, REPEATS / 2, REPEATS - 1]) {
        using part = actual[name].slice(0, n, n + 1);
        expectBitwiseEqual(`${name} of entry ${n}`, await part.data(), first);
      }
    }
    [...one, logits, ...many, manyLogits, ...Object.values(expected), ...Object.values(actual)].forEach((tensor) =>
      tensor.dispose(),
    );
  });
});
