import { attentionForward, kdaForward, memoryStats, Stream, Tensor } from '../../../lib';

// Drops what kdaForward saved without disposing of it, while the disposed inputs are still referred to; prints the bytes that
// are left once the collector has run, after a turn of the event loop or in a loop that never returns to it. Needs
// --expose-gc.

const zeros = (...shape: number[]) => Tensor.zeros(shape);

function forward(): Tensor[] {
  const inputs = [zeros(1, 64, 1, 64), zeros(1, 64, 1, 64), zeros(1, 64, 1, 64), zeros(1, 64, 1, 64)];
  const [q, k, v, x] = inputs;
  const [beta, aLog, dtBias] = [zeros(1, 64, 1), zeros(1), zeros(64)];
  kdaForward(q, k, v, x, beta, { gate: { aLog, dtBias }, saveIntermediates: true }).out.dispose();
  const all = [...inputs, beta, aLog, dtBias];
  all.forEach((tensor) => tensor.dispose());
  return all;
}

/** Enough allocations that what was collected is looked for. */
function allocate(): void {
  for (let n = 0; n < 5000; n++) Tensor.empty([1]).dispose();
}

async function main(): Promise<void> {
  const x = zeros(1, 1, 1, 1);
  const { out, lse } = attentionForward(x, x, x); // what is made once
  [x, out, lse].forEach((tensor) => tensor.dispose());
  const inputs = forward();
  Stream.current().synchronizeSync();
  globalThis.gc!();
  if (process.argv[2] === 'turn') await new Promise((resolve) => setTimeout(resolve, 50));
  else allocate();
  const { liveBytes } = memoryStats();
  process.stdout.write(JSON.stringify({ liveBytes, disposed: inputs.every(({ disposed }) => disposed) }));
}

void main();
