import { enqueueWork } from './work';

// Ends the process in the way that the first argument names, with work queued.
const results = enqueueWork();
process.stdout.write('ready\n');

const ways: Record<string, () => void> = {
  'process.exit': () => process.exit(7),
  'process.exit in a promise': () => void results[0].data().then(() => process.exit(7)),
  throw: () => {
    throw new Error('thrown on purpose');
  },
  rejection: () => void Promise.reject(new Error('rejected on purpose')),
  'end of script': () => undefined,
  'end of script while reading': () =>
    void results
      .at(-1)!
      .data()
      .then((data) => process.stdout.write(`read ${data.length}\n`)),
  'wait for a signal': () => void setInterval(() => undefined, 1000),
};
ways[process.argv[2]]();
