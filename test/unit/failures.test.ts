import { attentionForward, Stream, Tensor } from '../../lib';
import { expectError } from '../support/expectError';

// Operations that fail while they run. The one here needs a packed copy of more keys than any address space holds, of a
// tensor that is small because it repeats one row.

function failingCall(stream: Stream): Tensor {
  using q = Tensor.zeros([1, 100, 1, 64]);
  using row = Tensor.zeros([1, 1, 1, 64]);
  using keys = row.expand([1, 2 ** 41, 1, 64]);
  const { out, lse } = attentionForward(q, keys, keys, { stream });
  lse.dispose();
  return out;
}

const MESSAGE =
  /^attentionForward: cpu: can't allocate 562949953421312 bytes for the workspace; dispose of tensors that /;
const FAILURE = { code: 'ERR_WARPGRAD_OUT_OF_MEMORY', message: expect.stringMatching(MESSAGE) as string };

test('the next promise of the stream rejects, and what was queued later goes on', async () => {
  const stream = new Stream();
  using out = failingCall(stream);
  const synchronized = stream.synchronize();
  using later = Tensor.from([1, 2], [2], { stream });
  await expect(synchronized).rejects.toMatchObject(FAILURE);
  await expect(stream.synchronize()).resolves.toBeUndefined();
  expect([...(await later.data())]).toEqual([1, 2]);
  await expect(out.data()).rejects.toMatchObject(FAILURE);
  await expect(out.data()).rejects.toMatchObject(FAILURE); // its contents stay undefined
});

test('a call that blocks throws', () => {
  const stream = new Stream();
  using out = failingCall(stream);
  expectError(() => stream.synchronizeSync(), 'ERR_WARPGRAD_OUT_OF_MEMORY', MESSAGE);
  stream.synchronizeSync();
  expectError(() => out.dataSync(), 'ERR_WARPGRAD_OUT_OF_MEMORY', MESSAGE);
});

test('what reads a failed result fails with its failure', async () => {
  const stream = new Stream();
  using out = failingCall(stream);
  using copy = out.to({ dtype: 'bfloat16' });
  await expect(copy.data()).rejects.toMatchObject(FAILURE);
});

test('a promise that was there first gets the failure, not a blocking call after it', async () => {
  const stream = new Stream();
  for (let n = 0; n < 2000; n++) {
    failingCall(stream).dispose();
    const outcomes = Promise.allSettled([stream.synchronize()]);
    stream.synchronizeSync();
    expect(await outcomes).toMatchObject([{ status: 'rejected', reason: FAILURE }]);
  }
});
