import { runScript } from '../support/child';

jest.setTimeout(150_000);

// Expected values: the bound that the project promises, 200 MB above the start.
describe('tfjs 4362, node-llama-cpp 303: 10,000 operations without dispose stay within 200 MB', () => {
  test.each(['await', 'dataSync in a loop that never returns to the event loop'])('%s', async (way) => {
    const end = await runScript('memory.ts', { args: [way] });
    expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
    const { megabytes } = JSON.parse(end.stdout) as { megabytes: number };
    expect(megabytes).toBeLessThan(200);
  });
});

// Told of 65 MB more with each call, the collector would run in every second one. Expected value: that it need not run at
// all, and a few for what else it finds to do.
test('calls that dispose large results do not make the collector run', async () => {
  const end = await runScript('collections.ts');
  expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
  expect(Number(end.stdout)).toBeLessThan(10);
});

// 1.3 GB in sizes that nothing uses again. Expected values: the 512 MB that the cache may keep, and no faults in a block
// of 144 MB (72 with huge pages, else 36,864) that is used again and again: the others make room for it.
test('memory that is kept for later calls is bounded, and what was unused for longest goes first', async () => {
  const end = await runScript('pageCache.ts');
  expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
  const { megabytes, faults } = JSON.parse(end.stdout) as { megabytes: number; faults: number };
  expect(megabytes).toBeLessThan(560);
  expect(faults).toBeLessThan(36);
});

// Queued calls keep their results until they are done, 60 of them more than there is; a read needs its bytes once. Expected
// values: all 60 calls, and the bytes asked for.
test.each([
  ['a call waits for those before it', 'calls', 60],
  ['a read that fits is done', 'read', 400 * 2 ** 20],
  ['what is kept for other sizes is given back', 'kept', 700 * 2 ** 20],
])('where memory is short, %s', async (_title, way, number) => {
  const end = await runScript('shortMemory.ts', { args: [way] });
  expect(end).toEqual({ code: 0, signal: null, stdout: String(number), stderr: '' });
});

test.each(['turn', 'loop'])(
  'what kdaForward saved goes with its inputs when it is collected, not disposed: %s',
  async (way) => {
    const end = await runScript('savedCollected.ts', { args: [way], nodeOptions: ['--expose-gc'] });
    expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(JSON.parse(end.stdout)).toEqual({ liveBytes: 0, disposed: true });
  },
);
