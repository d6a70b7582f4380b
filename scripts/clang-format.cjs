#!/usr/bin/env node
'use strict';
// Checks the format of the native sources, or with --fix mends it; the version of clang-format comes from the lockfile.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const folder = path.join(__dirname, '..', 'native');
const sources = fs
  .readdirSync(folder, { recursive: true, encoding: 'utf8' })
  .filter((name) => /\.(h|cc|cu|cuh)$/.test(name))
  .map((name) => path.join(folder, name));
const mode = process.argv.includes('--fix') ? ['-i'] : ['--dry-run', '-Werror'];
const { clangFormatPath } = require('clang-format-node');
const { status, error } = spawnSync(clangFormatPath, [...mode, ...sources], {
  stdio: ['ignore', 'inherit', 'inherit'],
});
if (error) throw error;
process.exitCode = status ?? 1;
