import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { checkSmall, enqueueWork } from './work';

// Worker threads that load the addon, in the way that the first argument names.

interface WorkerTask {
  readonly thenEnqueue: boolean;
}

function startWorker(task: WorkerTask): Worker {
  return new Worker(__filename, { workerData: task, execArgv: process.execArgv });
}

function ended(worker: Worker): Promise<number> {
  return new Promise((resolve, reject) => {
    worker.on('exit', resolve);
    worker.on('error', reject);
  });
}

const ready = (worker: Worker) => new Promise((resolve) => worker.once('message', resolve));

const ways: Record<string, () => Promise<unknown>> = {
  'one after the other': async () => {
    for (let n = 0; n < 4; n++) {
      if ((await ended(startWorker({ thenEnqueue: false }))) !== 0) throw new Error(`worker ${n} failed`);
    }
  },
  'several at once, beside the main thread': async () => {
    const workers = Array.from({ length: 4 }, () => startWorker({ thenEnqueue: false }));
    const codes = Promise.all(workers.map(ended));
    await checkSmall();
    if ((await codes).some((code) => code !== 0)) throw new Error('a worker failed');
  },
  'terminate in the middle of an operation': async () => {
    for (let n = 0; n < 5; n++) {
      const worker = startWorker({ thenEnqueue: true });
      const end = ended(worker);
      await ready(worker);
      await worker.terminate();
      if ((await end) !== 1) throw new Error('the worker ended by itself');
    }
  },
  'process.exit in a worker with work queued': async () => {
    const worker = startWorker({ thenEnqueue: true });
    const end = ended(worker);
    await ready(worker);
    worker.postMessage('exit');
    if ((await end) !== 3) throw new Error('the worker ended otherwise');
  },
  'exit of the process with busy workers': async () => {
    const workers = Array.from({ length: 2 }, () => startWorker({ thenEnqueue: true }));
    await Promise.all(workers.map(ready));
    process.stdout.write('done\n');
    process.exit(0);
  },
};

async function main(): Promise<void> {
  await checkSmall();
  await ways[process.argv[2]]();
  await checkSmall(); // the main thread's own state is untouched
  process.stdout.write('done\n');
}

async function work({ thenEnqueue }: WorkerTask): Promise<void> {
  await checkSmall();
  if (!thenEnqueue) return;
  const results = enqueueWork();
  parentPort!.on('message', () => process.exit(3));
  parentPort!.postMessage('ready');
  await Promise.all(results.map((tensor) => tensor.data()));
}

void (isMainThread ? main() : work(workerData as WorkerTask));
