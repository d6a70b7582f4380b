#!/usr/bin/env node
import fs from 'node:fs';
import path from 'node:path';
import { type Command } from './command';
import { UsageError } from './options';

interface Entry {
  readonly name: string;
  readonly summary: string;
  /** Commands are loaded when they are called: they load the addon, whose failure they have to report. */
  load(): Promise<{ readonly command: Command }>;
}

const COMMANDS: readonly Entry[] = [
  { name: 'doctor', summary: 'says what would run here, and why', load: () => import('./doctor.js') },
  { name: 'check', summary: 'checks every operation and gradient on this machine', load: () => import('./check.js') },
  { name: 'bench', summary: 'measures speed on this machine', load: () => import('./bench.js') },
];

const OVERVIEW = `Usage: warpgrad <command> [options]

${COMMANDS.map(({ name, summary }) => `  ${name.padEnd(8)}${summary}`).join('\n')}

  warpgrad <command> --help (or -h) shows the options of a command.
  warpgrad --version prints the version.
`;

const HELP: readonly string[] = ['--help', '-h'];

/** Runs a command line and returns the exit status: 0 well, 1 failed, 2 not understood. */
async function main([name, ...args]: readonly string[]): Promise<number> {
  if (name === '--version') return print(`${version()}\n`);
  if (name !== undefined && HELP.includes(name)) return print(OVERVIEW);
  const entry = COMMANDS.find((candidate) => candidate.name === name);
  if (!entry) return misunderstood('warpgrad', unknown(name), OVERVIEW);
  try {
    const { command } = await entry.load();
    if (args.some((argument) => HELP.includes(argument))) return print(command.usage);
    try {
      return await command.run(args);
    } catch (error) {
      if (error instanceof UsageError) return misunderstood(`warpgrad ${entry.name}`, error.message, command.usage);
      throw error;
    }
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    // Without a code it is a bug, not a condition of this machine: keep the stack.
    if (code === undefined) throw error;
    const named = message.includes(code) ? '' : ` (${code})`; // the system's messages start with theirs
    process.stderr.write(`warpgrad ${entry.name}: ${message}${named}\n`);
    return 1;
  }
}

function version(): string {
  const manifest = fs.readFileSync(path.join(__dirname, '../../package.json'), 'utf8');
  return (JSON.parse(manifest) as { version: string }).version;
}

function print(text: string): number {
  process.stdout.write(text);
  return 0;
}

function unknown(name: string | undefined): string {
  if (name === undefined) return 'a command is missing';
  return `unknown ${name.startsWith('-') ? 'option' : 'command'} '${name}'`;
}

function misunderstood(by: string, problem: string, usage: string): number {
  process.stderr.write(`${by}: ${problem}\n\n${usage}`);
  return 2;
}

// A reader that has seen enough, such as `head`, is no fault.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') return;
  process.stderr.write(`warpgrad: the output can't be written: ${error.message}\n`);
  process.exit(1);
});

void main(process.argv.slice(2)).then((status) => {
  process.exitCode = status;
});
