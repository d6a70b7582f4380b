import { spawn } from 'node:child_process';
import { join } from 'node:path';

// In the GPU archive everything is compiled beforehand (scripts/gpu-bundle.cjs), and this file is JavaScript itself.
const COMPILED = __filename.endsWith('.js');
const REGISTER = COMPILED ? [] : ['-r', join(__dirname, 'register.cjs')];

export interface ChildEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ChildOptions {
  readonly folder?: 'addon' | 'gpu';
  readonly args?: readonly string[];
  readonly nodeOptions?: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
  /** Sent once the child has printed `ready`. */
  readonly signal?: NodeJS.Signals;
}

/** Runs a script of test/<folder>/scripts in a process of its own; kills it after two minutes, which no test expects. */
export function runScript(name: string, options: ChildOptions = {}): Promise<ChildEnd> {
  const { folder = 'addon', args = [], nodeOptions = [], env = {}, signal } = options;
  const script = join(__dirname, '..', folder, 'scripts', COMPILED ? name.replace(/\.ts$/, '.js') : name);
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [...nodeOptions, ...REGISTER, script, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), 120_000);
    let [stdout, stderr] = ['', ''];
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      if (signal && stdout.includes('ready')) child.kill(signal);
    });
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
    child.on('error', reject);
    child.on('close', (code, endSignal) => {
      clearTimeout(timer);
      resolve({ code, signal: endSignal, stdout, stderr });
    });
  });
}
