import { attentionBackward, attentionForward, kdaBackward, kdaForward, memoryStats, Tensor } from '../../../lib';

// 10,000 operations without dispose; prints by how many megabytes resident memory grew beyond the first 500.

const OPERATIONS = 10_000;
const WARM_UP = 500;

const values = (size: number) => Float32Array.from({ length: size }, (_, n) => Math.sin(n));

function operation(n: number): Tensor {
  const q = Tensor.from(values(16 * 2 * 64), [1, 16, 2, 64]); // 8 KB, ten tensors like it an operation
  if (n % 2 === 0) {
    const { out, lse } = attentionForward(q, q, q, { causal: true });
    return attentionBackward(out, q, q, q, out, lse, { causal: true }).dq;
  }
  const beta = Tensor.from(values(16 * 2), [1, 16, 2]);
  const { out, saved } = kdaForward(q, q, q, q, beta, {
    ...{ qkL2Norm: true, betaLogits: true, gate: { lowerBound: -5 } },
    saveIntermediates: n % 4 === 1,
  });
  return kdaBackward(out, saved).dk;
}

async function main(): Promise<void> {
  const wait = process.argv[2] === 'await';
  let start = 0;
  let highest = 0;
  for (let n = 0; n < OPERATIONS; n++) {
    if (n === WARM_UP) start = process.memoryUsage.rss();
    const result = operation(n);
    if (wait) await result.data();
    else result.dataSync();
    if (n >= WARM_UP && n % 50 === 0) highest = Math.max(highest, process.memoryUsage.rss());
  }
  const megabytes = Math.round((highest - start) / 2 ** 20);
  process.stdout.write(JSON.stringify({ megabytes, liveBytes: memoryStats().liveBytes }));
}

void main();
