import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

export const ROOT = path.resolve(__dirname, '../..');

/** Runs a program to its end and returns its standard output; throws with both streams when it fails. */
export function run(
  command: string,
  args: readonly string[],
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
): string {
  const { status, error, stdout, stderr } = spawnSync(command, args, { cwd, env, encoding: 'utf8' });
  if (error) throw error;
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with status ${status}:\n${stdout}\n${stderr}`);
  return stdout;
}

/** npm without a shell, so that it works with an empty PATH. */
export function npm(args: readonly string[], cwd: string, env: NodeJS.ProcessEnv = process.env): string {
  const beside = path.resolve(process.execPath, '../../lib/node_modules/npm/bin/npm-cli.js');
  return run(process.execPath, [process.env['npm_execpath'] ?? beside, ...args], cwd, env);
}

interface Packed {
  readonly filename: string;
  readonly files: readonly { readonly path: string }[];
}

export interface Installed {
  /** The folder of the consumer, with the package in its node_modules. */
  readonly consumer: string;
  readonly tarball: string;
  /** The prebuilt addon that went into the tarball. */
  readonly binary: string;
  /** An environment whose PATH has no program but node. */
  readonly bareEnv: NodeJS.ProcessEnv;
  remove(): void;
}

/** Makes a prebuild, packs it with what package.json lists, and installs that in an empty folder, without scripts. */
export function packAndInstall(): Installed {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'warpgrad-packaging-'));
  const [stage, consumer, bin] = ['stage', 'consumer', 'bin'].map((name) => path.join(folder, name));
  for (const made of [stage, bin]) fs.mkdirSync(made);
  npm(['run', 'prebuild', '--', '--out', stage], ROOT);

  const pack = (folder: string, ...args: string[]) =>
    JSON.parse(npm(['pack', '--json', '--ignore-scripts', ...args], folder))[0] as Packed;
  for (const { path: name } of pack(ROOT, '--dry-run').files) {
    if (!name.startsWith('prebuilds/')) fs.cpSync(path.join(ROOT, name), path.join(stage, name));
  }
  const { filename } = pack(stage);

  fs.symlinkSync(process.execPath, path.join(bin, 'node'));
  const bareEnv = { ...process.env, PATH: bin, NODE_PATH: '' };
  fs.cpSync(path.join(__dirname, 'consumer'), consumer, { recursive: true });
  fs.writeFileSync(path.join(consumer, 'package.json'), '{"private": true}\n');
  const tarball = path.join(stage, filename);
  npm(['install', '--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund', tarball], consumer, bareEnv);

  const target = path.join(stage, 'prebuilds', `${process.platform}-${process.arch}`);
  const binary = path.join(target, fs.readdirSync(target)[0]);
  return { consumer, tarball, binary, bareEnv, remove: () => fs.rmSync(folder, { recursive: true, force: true }) };
}
