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
