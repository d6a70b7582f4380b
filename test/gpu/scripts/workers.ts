import { isMainThread, Worker } from 'node:worker_threads';
import { attend } from './work';

// The main thread and three workers use the GPU at the same time; each compares with the CPU.

async function compare(): Promise<void> {
  const expected = await attend('cpu').data();
  for (let n = 0; n < 20; n++) {
    const actual = await attend('cuda').data();
    const wrong = actual.findIndex((value, at) => !(Math.abs(value - expected[at]) < 0.02));
    if (wrong >= 0) throw new Error(`element ${wrong} is ${actual[wrong]}, expected ${expected[wrong]}`);
  }
}

function finished(worker: Worker): Promise<void> {
  return new Promise((resolve, reject) => {
    worker.on('error', reject);
    worker.on('exit', (code) => (code === 0 ? resolve() : reject(new Error(`a worker ended with ${code}`))));
  });
}

async function main(): Promise<void> {
  const workers = Array.from({ length: 3 }, () => new Worker(__filename, { execArgv: process.execArgv }));
  await Promise.all([...workers.map(finished), compare()]);
  process.stdout.write('done\n');
}

void (isMainThread ? main() : compare());
