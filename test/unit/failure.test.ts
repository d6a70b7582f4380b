import { attentionForward, kdaForward, Stream, Tensor } from '../../lib';

// Work that fails while it runs: 16-bit keys are packed into a workspace, which for so many is larger than any address
// space. The keys themselves are one row, seen again and again.

function endlessAttention(stream: Stream): Tensor {
  const q = Tensor.zeros([1, 1, 1, 64], { dtype: 'bfloat16', stream });
  const keys = q.expand([1, 2 ** 42, 1, 64]);
  return attentionForward(q, keys, keys, { stream }).out;
}

const failure = {
  code: 'ERR_WARPGRAD_OUT_OF_MEMORY',
  name: 'WarpgradError',
  message: 'attentionForward: out of memory for the workspace',
};

test('rejects the next promise of the stream, once', async () => {
  const stream = new Stream();
  endlessAttention(stream);
  await expect(stream.synchronize()).rejects.toMatchObject(failure);
  await expect(stream.synchronize()).resolves.toBeUndefined();
});

test('throws from the next blocking call', () => {
  const stream = new Stream();
  endlessAttention(stream);
  expect(() => stream.synchronizeSync()).toThrow(expect.objectContaining(failure) as Error);
  expect(() => stream.synchronizeSync()).not.toThrow();
});

test('its results, and what is made of them, fail with the same error; other work goes on', async () => {
  const stream = new Stream();
  const out = endlessAttention(stream);
  await expect(stream.synchronize()).rejects.toMatchObject(failure);
  await expect(out.data()).rejects.toMatchObject(failure);
  const beta = Tensor.zeros([1, 1, 1], { dtype: 'bfloat16', stream });
  const derived = kdaForward(out, out, out, out, beta, { stream }).out;
  await expect(derived.data()).rejects.toMatchObject(failure);
  const elsewhere = out.to({ dtype: 'float32', stream: new Stream() });
  await expect(elsewhere.data()).rejects.toMatchObject(failure);
  expect([...(await Tensor.from([1, 2], [2], { stream }).data())]).toEqual([1, 2]);
});
