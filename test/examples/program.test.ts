import { execFile, execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { loadCheckpoint } from '../../examples/train/checkpoint';
import { loadText } from '../../examples/train/text';
import { workFolder } from './support';

// The program as `npm start` runs it. Its parts have tests of their own.

const ROOT = path.join(__dirname, '../..');
const PROGRAM = path.join(ROOT, 'build/train/main.js');
const folder = workFolder();

beforeAll(() => {
  execFileSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', 'examples/train'], { cwd: ROOT });
});

interface Result {
  readonly code: number | string | null;
  readonly stdout: string;
  readonly stderr: string;
}

function train(args: string[], env: NodeJS.ProcessEnv = {}): Promise<Result> {
  return new Promise((resolve) => {
    const options = { cwd: folder.path, env: { ...process.env, ...env } };
    execFile(process.execPath, [PROGRAM, ...args], options, (error, stdout, stderr) => {
      resolve({ code: error ? (error.code ?? null) : 0, stdout, stderr });
    });
  });
}

test('a short run learns, and leaves the curve, a sample, a summary and a checkpoint', async () => {
  const args = ['--text', 'text.txt', '--device', 'cpu', '--steps', '40', '--out', 'out', '--save', 'end', '--json'];
  const { code, stdout, stderr } = await train(args);
  expect(code).toBe(0);
  expect(stderr).toContain('baselines  unigram');
  expect(stderr).toMatch(/step 40\/40 {2}loss \d\.\d{3} {2}held-out .* tokens\/s/);

  const summary = JSON.parse(stdout);
  expect(summary).toMatchObject({ text: 'text.txt', device: 'cpu', kdaDevice: 'cpu', steps: 40, seed: 1 });
  // The unigram model knows how often each byte comes; an untrained model starts above it.
  expect(summary.validation.nats).toBeLessThan(summary.unigram.nats);
  expect(summary.bigram.nats).toBeLessThan(summary.unigram.nats);
  expect(summary.validation.bits).toBeCloseTo(summary.validation.nats / Math.LN2, 10);
  expect(summary.sample).toHaveLength(400);

  expect(JSON.parse(readFileSync(folder.file('out/summary.json'), 'utf8'))).toEqual(summary);
  expect(readFileSync(folder.file('out/sample.txt'), 'utf8')).toBe(summary.prompt + summary.sample);
  expect(readFileSync(folder.file('out/loss.svg'), 'utf8')).toContain('bigram model');
  expect(readFileSync(folder.file('out/loss.png')).subarray(1, 4).toString()).toBe('PNG');
  expect(loadCheckpoint(folder.file('end'), loadText(folder.file('text.txt')))).toMatchObject({ step: 40, seed: 1 });
});

test('what would command a terminal is in the sample of such a text, and not in what is printed', async () => {
  writeFileSync(folder.file('colours'), '\x1b[31mred\x1b[0m\r\n'.repeat(500));
  const args = ['--text', 'colours', '--device', 'cpu', '--steps', '1', '--out', 'colours.out'];
  const { code, stdout } = await train(args);
  expect(code).toBe(0);
  expect(readFileSync(folder.file('colours.out/sample.txt'), 'utf8')).toContain('\x1b[31mred');
  expect(stdout).toContain('\ufffd[31mred');
  expect(stdout.replace(/[\n\t]/g, '')).not.toMatch(/\p{Cc}/u);
});

test.each(['SIGINT', 'SIGTERM'] as const)('%s saves, says how to go on, and ends in peace', async (signal) => {
  const args = ['--text', 'text.txt', '--device', 'cpu', '--out', signal];
  const child = spawn(process.execPath, [PROGRAM, ...args], { cwd: folder.path });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  // What is printed before the training starts.
  child.stdout.once('data', () => child.kill(signal));
  expect(await new Promise((resolve) => child.on('close', resolve))).toBe(0);

  const checkpoint = path.join(signal, 'checkpoint.safetensors');
  const [, steps, command] = /stopped after step (\d+); go on with: (.*)\n$/.exec(output)!;
  expect(command).toBe(`npm start -- --resume ${checkpoint} --text text.txt --steps 800`);
  const state = loadCheckpoint(folder.file(checkpoint), loadText(folder.file('text.txt')));
  expect(state.step).toBe(Number(steps));
  expect(existsSync(folder.file(path.join(signal, 'summary.json')))).toBe(false);
});

test('a mistake ends the program with its message alone', async () => {
  const { code, stdout, stderr } = await train(['--stpes', '3']);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toContain("error: Unknown option '--stpes'");
  expect(stderr).not.toContain('    at ');
});

test('a file for --out is refused before the training', async () => {
  const { code, stderr } = await train(['--text', 'text.txt', '--device', 'cpu', '--steps', '1', '--out', 'text.txt']);
  expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringContaining('--out: cannot write to the folder') });
  expect(stderr.split('\n')).toHaveLength(2);
});

test('a GPU where there is none', async () => {
  const { code, stderr } = await train(['--device', 'cuda'], { WARPGRAD_DISABLE_CUDA: '1' });
  expect(code).toBe(1);
  expect(stderr).toMatch(/^error: --device cuda can't be used: .*WARPGRAD_DISABLE_CUDA=1 hides GPUs\n$/);
});

test('--help names every option', async () => {
  const { code, stdout } = await train(['--help']);
  expect(code).toBe(0);
  for (const option of ['text', 'steps', 'device', 'seed', 'save', 'resume', 'out', 'json']) {
    expect(stdout).toContain(`--${option}`);
  }
});
