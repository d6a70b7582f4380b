import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { attentionForward, Tensor } from '../../../lib';

// In a process that may have 1 GB more than it starts with. `calls`: calls with results of 64 MB, disposed at once and never
// awaited; prints how many there were. `read`: reads 400 MB, beside which as much fits once, not twice; prints how many bytes.
// `kept`: takes 700 MB after 480 MB were disposed of, which are kept for tensors of their size; prints how many bytes.

const CALLS = 60;
const MORE_KILOBYTES = 2 ** 20;
const ROWS = 2 ** 17;
const PAGE_KILOBYTES = 4;

const [way, limited] = process.argv.slice(2);

function callInTurn(): number {
  const q = Tensor.zeros([1, ROWS, 1, 128]);
  const k = Tensor.zeros([1, 1, 1, 128]);
  let calls = 0;
  for (; calls < CALLS; calls++) {
    const { out, lse } = attentionForward(q, k, k);
    out.dispose();
    lse.dispose();
  }
  return calls;
}

const empty = (megabytes: number) => Tensor.empty([(megabytes * 2 ** 20) / 4]);

const WAYS: Record<string, () => number> = {
  calls: callInTurn,
  read: () => empty(400).dataSync().byteLength,
  kept: () => {
    const tensors = Array.from({ length: 8 }, () => empty(60));
    for (const tensor of tensors) tensor.dispose();
    return empty(700).byteLength;
  },
};

if (limited) {
  process.stdout.write(String(WAYS[way]()));
} else {
  Tensor.zeros([1]).dispose(); // the threads are there
  const pages = Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[0]);
  const limit = pages * PAGE_KILOBYTES + MORE_KILOBYTES;
  const self = [process.execPath, ...process.execArgv, __filename, way, 'limited'];
  const { status } = spawnSync('sh', ['-c', `ulimit -v ${limit}; exec "$@"`, 'sh', ...self], { stdio: 'inherit' });
  process.exitCode = status ?? 1;
}
