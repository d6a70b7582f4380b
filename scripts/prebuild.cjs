#!/usr/bin/env node
'use strict';
// Makes prebuilds/<platform>-<arch>/warpgrad.<libc>.node with prebuildify. Usage: node scripts/prebuild.cjs [--out DIR]
//
// prebuildify rebuilds and empties build/ where it runs. It runs in a temporary folder that shares only this folder of
// scripts, which keep the incremental build tree: nothing compiles twice, and build/Release stays in place.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');

const ROOT = path.resolve(__dirname, '..');
const NODE_VERSION = '20.20.2';

/** @param {string} folder where prebuildify runs, and where it leaves prebuilds/ */
function prebuild(folder) {
  for (const file of ['package.json', 'binding.gyp']) fs.copyFileSync(path.join(ROOT, file), path.join(folder, file));
  fs.symlinkSync(__dirname, path.join(folder, 'scripts'));
  const args = [require.resolve('prebuildify/bin.js'), '--napi', '--strip', '--tag-libc', '--target', NODE_VERSION];
  const { status, error } = spawnSync(process.execPath, args, { cwd: folder, stdio: ['ignore', 'inherit', 'inherit'] });
  if (error) throw error;
  return status ?? 1;
}

const { values } = parseArgs({ options: { out: { type: 'string', default: ROOT } } });
const scratch = path.join(ROOT, '.build');
fs.mkdirSync(scratch, { recursive: true });
const temporary = fs.mkdtempSync(path.join(scratch, 'prebuild-'));
try {
  process.exitCode = prebuild(temporary);
  if (process.exitCode === 0) {
    fs.cpSync(path.join(temporary, 'prebuilds'), path.join(values.out, 'prebuilds'), { recursive: true });
  }
} finally {
  fs.rmSync(temporary, { recursive: true, force: true });
}
