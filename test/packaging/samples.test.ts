import fs from 'node:fs';
import path from 'node:path';
import { ROOT, run } from './install';

// Every program of the documentation runs as printed, on the CPU, and is TypeScript as well. What a `js` fence holds is a program;
// the `text` fence behind it says what that prints. In a folder of the package its own name leads to it.

const PAGES = ['README.md', 'docs/gpu.md', 'docs/kda.md', 'docs/training.md'];
const FOLDER = path.join(ROOT, 'build/samples');

const samples = PAGES.flatMap((page) => {
  const text = fs.readFileSync(path.join(ROOT, page), 'utf8');
  const found = [...text.matchAll(/```js\n([^]*?)```(?:\n+prints[^\n]*\n+```text\n([^]*?)```)?/g)];
  return found.map(([, program, output], n) => {
    return { page, n: n + 1, program, output, file: path.join(FOLDER, `${path.basename(page, '.md')}-${n + 1}`) };
  });
});

beforeAll(() => fs.mkdirSync(FOLDER, { recursive: true }));
afterAll(() => fs.rmSync(FOLDER, { recursive: true, force: true }));

test('there are samples on every page', () => {
  expect([...new Set(samples.map(({ page }) => page))]).toEqual(PAGES);
});

test.each(samples)('sample $n of $page prints what it says', ({ file, program, output }) => {
  fs.writeFileSync(`${file}.mjs`, program);
  expect(output).toBeDefined();
  expect(run(process.execPath, [`${file}.mjs`], ROOT, { ...process.env, WARPGRAD_DISABLE_CUDA: '1' })).toBe(output);
});

test('as TypeScript they have no errors', () => {
  for (const { file, program } of samples) fs.writeFileSync(`${file}.mts`, program);
  const files = samples.map(({ file }) => `${file}.mts`);
  const options = [
    '--noEmit',
    '--strict',
    '--skipLibCheck',
    '--ignoreConfig',
    '--target',
    'es2022',
    '--module',
    'node16',
  ];
  const tsc = require.resolve('typescript/bin/tsc');
  expect(run(process.execPath, [tsc, ...options, '--types', 'node', ...files], ROOT)).toBe('');
});
