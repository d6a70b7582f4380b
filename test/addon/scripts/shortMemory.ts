import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { attentionForward, Tensor } from '../../../lib';

// Calls with results of 64 MB, disposed at once and never awaited, in a process that may have 1 GB more than it starts with;
// prints how many there were.

const CALLS = 60;
const MORE_KILOBYTES = 2 ** 20;
const ROWS = 2 ** 17;
const PAGE_KILOBYTES = 4;

if (process.argv[2] === 'limited') {
  const q = Tensor.zeros([1, ROWS, 1, 128]);
  const k = Tensor.zeros([1, 1, 1, 128]);
  let calls = 0;
  for (; calls < CALLS; calls++) {
    const { out, lse } = attentionForward(q, k, k);
    out.dispose();
    lse.dispose();
  }
  process.stdout.write(String(calls));
} else {
  Tensor.zeros([1]).dispose(); // the threads are there
  const pages = Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[0]);
  const limit = pages * PAGE_KILOBYTES + MORE_KILOBYTES;
  const self = [process.execPath, ...process.execArgv, __filename, 'limited'];
  const { status } = spawnSync('sh', ['-c', `ulimit -v ${limit}; exec "$@"`, 'sh', ...self], { stdio: 'inherit' });
  process.exitCode = status ?? 1;
}
