import { attentionBackward, attentionForward, kdaBackward, kdaForward, Stream, Tensor } from '../../../lib';

/** Enqueues about a second of both operations on two streams. */
export function enqueueWork(): Tensor[] {
  const results: Tensor[] = [];
  for (const stream of [new Stream(), new Stream()]) {
    const q = Tensor.zeros([1, 512, 8, 64], { stream });
    const g = Tensor.zeros([1, 512, 8, 64], { stream });
    const beta = Tensor.zeros([1, 512, 8], { stream });
    for (let n = 0; n < 6; n++) {
      const { out, lse } = attentionForward(q, q, q, { stream });
      const { out: kdaOut, saved } = kdaForward(q, q, q, g, beta, { stream });
      results.push(attentionBackward(out, q, q, q, out, lse, { stream }).dq);
      results.push(kdaBackward(kdaOut, saved, { stream }).dq);
    }
  }
  return results;
}

/** A small forward and backward of both operations with a known result. */
export async function checkSmall(): Promise<void> {
  const q = Tensor.from([1, 2, 3, 4], [1, 4, 1, 1]);
  const { out, lse } = attentionForward(q, q, q, { window: [0, 0] });
  const { dv } = attentionBackward(out, q, q, q, out, lse, { window: [0, 0] });
  const beta = Tensor.from([1, 1, 1, 1], [1, 4, 1]);
  const forgetting = Tensor.from([-1000, -1000, -1000, -1000], [1, 4, 1, 1]);
  const kda = kdaForward(q, q, q, forgetting, beta); // each token alone: q·k·v
  for (const [tensor, expected] of [
    [out, [1, 2, 3, 4]],
    [dv, [1, 2, 3, 4]],
    [kda.out, [1, 8, 27, 64]],
  ] as const) {
    const found = await tensor.data();
    if (found.some((value, n) => !(Math.abs(value - expected[n]) < 1e-4))) {
      throw new Error(`expected ${String(expected)}, got ${String(found)}`);
    }
  }
}
