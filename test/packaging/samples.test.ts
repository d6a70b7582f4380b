import fs from 'node:fs';
import path from 'node:path';
import { ROOT, run } from './install';

// Every sample of the documentation runs as printed, on the CPU. Those that `js` fences hold are programs; what follows says
// what they print. In a folder of the package its own name leads to it.

const PAGES = ['README.md', 'docs/gpu.md', 'docs/kda.md', 'docs/training.md'];
const FOLDER = path.join(ROOT, 'build/samples');

const samples = PAGES.flatMap((page) => {
  const text = fs.readFileSync(path.join(ROOT, page), 'utf8');
  const found = [...text.matchAll(/```js\n([^]*?)```(?:\n+prints[^\n]*\n+```text\n([^]*?)```)?/g)];
  return found.map(([, program, output], n) => ({ page, n: n + 1, program, output }));
});

beforeAll(() => fs.mkdirSync(FOLDER, { recursive: true }));
afterAll(() => fs.rmSync(FOLDER, { recursive: true, force: true }));

test('there are samples on every page', () => {
  expect([...new Set(samples.map(({ page }) => page))]).toEqual(PAGES);
});

test.each(samples)('sample $n of $page', ({ page, n, program, output }) => {
  const file = path.join(FOLDER, `${path.basename(page, '.md')}-${n}.mjs`);
  fs.writeFileSync(file, program);
  expect(output).toBeDefined();
  expect(run(process.execPath, [file], ROOT, { ...process.env, WARPGRAD_DISABLE_CUDA: '1' })).toBe(output);
});
