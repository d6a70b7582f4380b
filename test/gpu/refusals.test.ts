import { attentionBackward, attentionForward, kdaForward, Stream, Tensor } from '../../lib';
import { CUDA, describeCuda } from '../support/cuda';
import { expectError } from '../support/expectError';

// What the GPU can't do is refused by the call, before anything is launched.

describeCuda('refused on the GPU', () => {
  const make = (shape: number[], dtype: 'float32' | 'float16' | 'bfloat16' = 'bfloat16') =>
    Tensor.zeros(shape, { dtype, device: CUDA });

  afterEach(async () => {
    await Stream.current(CUDA).synchronize(); // rejects if something was launched and failed
    expect([...(await make([2], 'float32').data())]).toEqual([0, 0]);
  });

  test.each([
    [20, 20],
    [64, 36],
    [250, 250],
  ])('head dimensions %i and %i, with what is supported', (dim, valueDim) => {
    const [q, v] = [make([1, 4, 2, dim]), make([1, 4, 2, valueDim])];
    expectError(
      () => attentionForward(q, q, v),
      'ERR_WARPGRAD_UNSUPPORTED',
      'attentionForward: on cuda the dtype must be bfloat16 or float16 and the head dimensions multiples of 8 up to ' +
        `256, got bfloat16, ${dim} for q and k, ${valueDim} for v`,
    );
  });

  test('float32', () => {
    const q = make([1, 4, 2, 64], 'float32');
    expectError(() => attentionForward(q, q, q), 'ERR_WARPGRAD_UNSUPPORTED', /got float32, 64 for q and k, 64 for v$/);
  });

  test.each([
    ['bfloat16', 250, 250],
    ['bfloat16', 64, 36],
    ['float32', 64, 64],
  ] as const)('attentionBackward of %s, head dimensions %i and %i', (dtype, dim, valueDim) => {
    const [q, v] = [make([1, 4, 2, dim], dtype), make([1, 4, 2, valueDim], dtype)];
    expectError(
      () => attentionBackward(v, q, q, v, v, make([1, 2, 4], 'float32')),
      'ERR_WARPGRAD_UNSUPPORTED',
      'attentionBackward: on cuda the dtype must be bfloat16 or float16 and the head dimensions multiples of 8 up to ' +
        `256, got ${dtype}, ${dim} for q and k, ${valueDim} for v`,
    );
  });

  test('flash-attention 1782: tensors on two devices', () => {
    const q = make([1, 4, 2, 64]);
    const k = Tensor.zeros([1, 4, 2, 64], { dtype: 'bfloat16' });
    expectError(
      () => attentionForward(q, k, k),
      'ERR_OUT_OF_RANGE',
      `attentionForward: k must be on ${CUDA} like q, got cpu`,
    );
    expectError(
      () => attentionForward(q, q, q, { stream: new Stream() }),
      'ERR_OUT_OF_RANGE',
      /stream must be on cuda/,
    );
  });

  const kdaInputs = (K: number, V: number, dtype: 'float32' | 'bfloat16' = 'bfloat16') =>
    [
      ...[make([1, 4, 2, K], dtype), make([1, 4, 2, K], dtype), make([1, 4, 2, V], dtype)],
      ...[make([1, 4, 2, K], 'float32'), make([1, 4, 2], 'float32')],
    ] as [Tensor, Tensor, Tensor, Tensor, Tensor];

  test('KDA of float32', () => {
    expectError(
      () => kdaForward(...kdaInputs(64, 64, 'float32')),
      'ERR_WARPGRAD_UNSUPPORTED',
      'kdaForward: on cuda the dtype must be bfloat16 or float16, got float32',
    );
  });
});
