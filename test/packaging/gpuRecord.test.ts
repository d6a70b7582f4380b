import fs from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { hashNativeSources } from '../../scripts/native-sources.cjs';
import { ROOT } from './install';

// test/gpu/record.json is what the last run of the GPU suite left: the machine, the counts, and the fingerprint of the
// native sources that ran. After a change to native/ it is out of date until the suite runs again:
// npm run gpu:bundle, then on a GPU server `run.sh test --out DIR`, and DIR/record.json comes here.

const FILE = path.join(ROOT, 'test/gpu/record.json');

const record = JSON.parse(fs.readFileSync(FILE, 'utf8'));

test('the record is of these native sources', () => {
  expect(record.nativeSources).toBe(hashNativeSources(ROOT));
  expect(record.passed).toBeGreaterThan(0);
  expect(record.device).toContain('NVIDIA');
});

// What failed there, or did not run before the run was ended, can't be mended without a GPU: it is reported as a skipped test
// until the suite runs again.
const { device, date, passed, failed, skipped, notRun } = record;
const left = notRun.length === 0 ? '' : `, not run: ${notRun.join(', ')}`;
(failed === 0 && left === '' ? test : test.skip)(
  `the GPU suite on ${device}, ${date}: ${passed} passed, ${failed} failed, ${skipped} skipped${left}`,
  () => expect([failed, notRun]).toEqual([0, []]),
);

test('the fingerprint sees every change of a source, and nothing else', () => {
  const folder = fs.mkdtempSync(path.join(tmpdir(), 'warpgrad-sources-'));
  try {
    fs.mkdirSync(path.join(folder, 'native/ops'), { recursive: true });
    const write = (file: string, text: string) => fs.writeFileSync(path.join(folder, file), text);
    write('CMakeLists.txt', 'project(x)');
    write('native/ops/a.cc', 'int a;');
    const first = hashNativeSources(folder);
    write('native/ops/README.md', 'words');
    expect(hashNativeSources(folder)).toBe(first);
    for (const [file, text] of [
      ['native/ops/a.cc', 'int b;'],
      ['native/ops/b.cu', ''],
      ['CMakeLists.txt', 'project(y)'],
    ]) {
      const before = hashNativeSources(folder);
      write(file, text);
      expect(hashNativeSources(folder)).not.toBe(before);
    }
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
});
