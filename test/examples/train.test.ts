import { execFile, execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const ROOT = path.join(__dirname, '../..');
const PROGRAM = path.join(ROOT, 'build/train/main.js');

let folder: string;
const inFolder = (name: string) => path.join(folder, name);

beforeAll(() => {
  execFileSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', 'examples/train'], { cwd: ROOT });
  folder = mkdtempSync(path.join(tmpdir(), 'warpgrad-train-'));
  const sentence = 'The quick brown fox jumps over the lazy dog, and the dog does not mind at all.\n';
  writeFileSync(inFolder('text.txt'), sentence.repeat(100));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Result {
  readonly code: number | string | null;
  readonly stdout: string;
  readonly stderr: string;
}

function train(args: string[], env: NodeJS.ProcessEnv = {}): Promise<Result> {
  return new Promise((resolve) => {
    const options = { cwd: folder, env: { ...process.env, ...env } };
    execFile(process.execPath, [PROGRAM, ...args], options, (error, stdout, stderr) => {
      resolve({ code: error ? (error.code ?? null) : 0, stdout, stderr });
    });
  });
}

const COMMON = ['--text', 'text.txt', '--device', 'cpu'];

async function trainToCheckpoint(args: string[], checkpoint: string): Promise<Buffer> {
  const { code, stderr } = await train([...args, '--save', checkpoint, '--out', 'out']);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return readFileSync(inFolder(checkpoint));
}

test('a short run learns, and leaves the curve, a sample and a summary', async () => {
  const { code, stdout, stderr } = await train([...COMMON, '--steps', '25', '--out', 'short', '--json']);
  expect(code).toBe(0);
  expect(stderr).toContain('baselines  unigram');
  expect(stderr).toMatch(/step 25\/25 {2}loss \d\.\d{3} {2}held-out .* tokens\/s/);

  const summary = JSON.parse(stdout);
  expect(summary).toMatchObject({ text: 'text.txt', device: 'cpu', steps: 25, seed: 1 });
  // The unigram model knows how often each byte comes; an untrained model starts above it.
  expect(summary.validation.nats).toBeLessThan(summary.unigram.nats);
  expect(summary.bigram.nats).toBeLessThan(summary.unigram.nats);
  expect(summary.validation.bits).toBeCloseTo(summary.validation.nats / Math.LN2, 10);
  expect(summary.sample).toHaveLength(400);

  expect(JSON.parse(readFileSync(inFolder('short/summary.json'), 'utf8'))).toEqual(summary);
  expect(readFileSync(inFolder('short/sample.txt'), 'utf8')).toBe(summary.prompt + summary.sample);
  expect(readFileSync(inFolder('short/loss.svg'), 'utf8')).toContain('bigram model');
  expect(readFileSync(inFolder('short/loss.png')).subarray(1, 4).toString()).toBe('PNG');
});

test('the seed decides the run, and a resumed run equals one that never stopped', async () => {
  const whole = await trainToCheckpoint([...COMMON, '--steps', '8'], 'whole');
  expect(await trainToCheckpoint([...COMMON, '--steps', '8'], 'again')).toEqual(whole);
  expect(await trainToCheckpoint([...COMMON, '--steps', '8', '--seed', '2'], 'other')).not.toEqual(whole);

  await trainToCheckpoint([...COMMON, '--steps', '4'], 'half');
  expect(await trainToCheckpoint([...COMMON, '--steps', '8', '--resume', 'half'], 'resumed')).toEqual(whole);
});

test.each(['SIGINT', 'SIGTERM'] as const)('%s saves, says how to go on, and ends in peace', async (signal) => {
  const child = spawn(process.execPath, [PROGRAM, ...COMMON, '--out', signal], { cwd: folder });
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk.toString();
    if (output.includes('baselines')) child.kill(signal);
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  expect(code).toBe(0);
  const checkpoint = path.join(signal, 'checkpoint.safetensors');
  const [, steps] = /stopped after step (\d+); go on with: (npm start -- .*)\n$/.exec(output)!;
  expect(output).toContain(`npm start -- --resume ${checkpoint} --text text.txt --steps 600`);
  expect(existsSync(inFolder(checkpoint))).toBe(true);

  const end = String(Number(steps) + 2);
  const resumed = await trainToCheckpoint([...COMMON, '--resume', checkpoint, '--steps', end], 'resumed');
  expect(resumed).toEqual(await trainToCheckpoint([...COMMON, '--steps', end], 'whole'));
});

describe('mistakes are named with their cure', () => {
  beforeAll(async () => {
    const whole = await trainToCheckpoint([...COMMON, '--steps', '2'], 'good');
    writeFileSync(inFolder('cut'), whole.subarray(0, whole.length - 1000));
    writeFileSync(inFolder('garbage'), 'These bytes are no checkpoint, and they know it.');
    writeFileSync(inFolder('empty.txt'), '');
    writeFileSync(inFolder('short.txt'), 'short');
    writeFileSync(inFolder('other.txt'), 'Another text than the one of the checkpoint.\n'.repeat(200));
    const golden = path.join(ROOT, 'test/golden/attn_causal_d64_s65.safetensors');
    writeFileSync(inFolder('golden'), readFileSync(golden));
  });

  test.each<[string, string[], string]>([
    ['an unknown option', ['--stpes', '3'], "error: Unknown option '--stpes'"],
    ['an argument too many', ['file.txt'], "error: Unexpected argument 'file.txt'"],
    ['no number', ['--steps', 'many'], "error: --steps must be a whole number of at least 1, got 'many'"],
    ['no steps', ['--steps', '0'], "error: --steps must be a whole number of at least 1, got '0'"],
    ['a fractional seed', ['--seed', '1.5'], "error: --seed must be a whole number of at least 0, got '1.5'"],
    ['an unknown device', ['--device', 'tpu'], "error: --device must be auto, cpu, cuda or cuda:N, got 'tpu'"],
    ['a device that is not there', ['--device', 'cuda'], "error: --device cuda can't be used: "],
    ['a missing text', ['--text', 'none.txt'], 'error: --text: cannot read none.txt: ENOENT'],
    ['an empty text', ['--text', 'empty.txt'], 'error: the text empty.txt has 0 bytes; at least 4096 are needed'],
    ['a short text', ['--text', 'short.txt'], 'error: the text short.txt has 5 bytes; at least 4096 are needed'],
    ['a target without a folder', ['--save', 'no/where'], 'error: --save: there is no folder'],
    ['a folder as target', ['--save', '.'], 'error: --save: . is a folder'],
    ['a file as folder', ['--out', 'text.txt'], 'error: --out: cannot make the folder text.txt'],
    ['a missing checkpoint', ['--resume', 'none'], 'error: --resume: cannot read none: ENOENT'],
    [
      'a cut checkpoint',
      [...COMMON, '--resume', 'cut'],
      'error: --resume: cut is damaged or of another kind: it ends inside',
    ],
    [
      'garbage',
      [...COMMON, '--resume', 'garbage'],
      'error: --resume: garbage is damaged or of another kind: it ends inside',
    ],
    ['other tensors', [...COMMON, '--resume', 'golden'], 'error: --resume: golden is not a checkpoint of this program'],
    ['another text', ['--text', 'other.txt', '--resume', 'good'], 'error: --resume: good was trained on another text'],
    ['a seed for a resumed run', [...COMMON, '--resume', 'good', '--seed', '1'], 'error: --seed: a resumed run keeps'],
    [
      'no steps left',
      [...COMMON, '--resume', 'good', '--steps', '2'],
      'error: --resume: good has done 2 steps already',
    ],
  ])('%s', async (_, args, message) => {
    const { code, stdout, stderr } = await train(args, { WARPGRAD_DISABLE_CUDA: '1' });
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr.slice(0, message.length)).toBe(message);
    expect(stderr).not.toContain('    at ');
  });
});

test('--help names every option', async () => {
  const { code, stdout } = await train(['--help']);
  expect(code).toBe(0);
  for (const option of ['text', 'steps', 'device', 'seed', 'save', 'resume', 'out', 'json']) {
    expect(stdout).toContain(`--${option}`);
  }
});
