import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { ROOT, run } from './install';

// The archive for GPU servers, made with the least compression and unpacked where there is nothing: no program on the
// PATH, no node_modules above. Without a GPU its tests are skipped by name.

const able = ['tar', 'xz', 'strip'].every((tool) => spawnSync(tool, ['--version']).status === 0);
const title = able ? 'GPU archive' : 'GPU archive (skipped: needs tar, xz and strip)';

(able ? describe : describe.skip)(title, () => {
  let folder: string;
  const runArchive = (...args: string[]) =>
    spawnSync(path.join(folder, 'warpgrad-gpu/run.sh'), args, {
      cwd: folder,
      encoding: 'utf8',
      env: { PATH: '', WARPGRAD_DISABLE_CUDA: '1' },
    });

  beforeAll(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'warpgrad-gpu-'));
    const archive = path.join(folder, 'archive.tar.xz');
    run(process.execPath, [path.join(ROOT, 'scripts/gpu/bundle.cjs'), '--out', archive], ROOT, {
      ...process.env,
      XZ_OPT: '-0 -T0',
    });
    run('tar', ['-xf', archive, '-C', folder], ROOT);
  }, 180_000);
  afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));

  test('runs the suite, says what it skipped and why, and leaves a record', () => {
    const { status, stdout, stderr } = runArchive('test', '--out', 'results');
    expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/\n0 passed, 0 failed, [1-9]\d* skipped\n$/);
    const record = JSON.parse(fs.readFileSync(path.join(folder, 'results/record.json'), 'utf8'));
    expect(record).toMatchObject({ device: null, passed: 0, failed: 0 });
  });

  test.each([
    ['bench', 'there is no usable GPU: WARPGRAD_DISABLE_CUDA=1 hides GPUs\n'],
    [
      'check',
      'warpgrad check: --device: there is no device cuda: WARPGRAD_DISABLE_CUDA=1 hides GPUs (ERR_WARPGRAD_NO_DEVICE)\n',
    ],
  ])('%s says that there is no GPU', (command, message) => {
    const { status, stderr } = runArchive(command);
    expect({ status, stderr }).toEqual({ status: 1, stderr: message });
  });

  test('train has all that it needs', () => {
    const text = 'warpgrad-gpu/scripts/bench/gpu/driver.cjs'; // short
    const options = ['--steps', '1', '--device', 'cpu', '--text', text, '--out', 'trained'];
    const { status, stdout, stderr } = runArchive('train', ...options);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toContain('held-out');
    expect(fs.existsSync(path.join(folder, 'trained/loss.png'))).toBe(true);
  });

  test('an unknown command gets the usage', () => {
    const { status, stderr } = runArchive('tset');
    expect(status).toBe(2);
    expect(stderr).toContain('Usage: run.sh');
  });
});
