#!/usr/bin/env node
'use strict';
// Builds the addon with CMake, incrementally, and puts it at build/Release/warpgrad.node (or into --out DIR).
// With --if-missing, as at the package's installation, only where no binary can be loaded: a prebuilt one will do.
//
// The build tree is .build/addon, outside build/, which `node-gyp rebuild` deletes. The GPU backend is built where there is a
// compiler for it; the environment variable WARPGRAD_CUDA=ON or OFF decides otherwise.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { parseArgs } = require('node:util');

const ROOT = path.resolve(__dirname, '..');
const TREE = path.join(ROOT, '.build', 'addon');
const BINARY = 'warpgrad.node';
const INSTALL_HINT = 'On Debian or Ubuntu: sudo apt-get install -y cmake g++ make';

/** @param {string} message @returns {never} */
function fail(message) {
  console.error(`warpgrad: ${message}`);
  process.exit(1);
}

/** @param {string} command @param {string[]} args @param {string} [input] */
function succeeds(command, args, input) {
  return (
    spawnSync(command, args, { input, stdio: [input === undefined ? 'ignore' : 'pipe', 'ignore', 'ignore'] }).status ===
    0
  );
}

/** @param {string} step @param {string} command @param {string[]} args */
function run(step, command, args) {
  const { status, error } = spawnSync(command, args, { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'] });
  if (error) fail(`can't start ${command}: ${error.message}`);
  if (status !== 0) fail(`the native build failed while CMake was to ${step}; its messages are above`);
}

function requireTools() {
  if (!succeeds('cmake', ['--version'])) fail(`the native build needs CMake 3.20 or later. ${INSTALL_HINT}`);
  const compiler = process.env.CXX || ['c++', 'g++', 'clang++'].find((name) => succeeds(name, ['--version']));
  const probe = '#include <bit>\nint main() { return std::bit_cast<int>(0u); }\n';
  if (!compiler || !succeeds(compiler, ['-std=c++20', '-fsyntax-only', '-x', 'c++', '-'], probe)) {
    fail(`the native build needs a C++20 compiler (g++ 12 or later is tested; set CXX to choose one). ${INSTALL_HINT}`);
  }
}

/** The values of CMakeCache.txt, or null where there is no tree yet. @returns {Map<string, string> | null} */
function readCache() {
  const file = path.join(TREE, 'CMakeCache.txt');
  if (!fs.existsSync(file)) return null;
  const entries = fs.readFileSync(file, 'utf8').matchAll(/^(\w+):\w+=(.*)$/gm);
  return new Map(Array.from(entries, ([, name, value]) => [name, value]));
}

/** Makes sure that an existing tree belongs to this source folder and this generator. @param {string} generator */
function prepareTree(generator) {
  const cache = readCache();
  const usable =
    cache !== null &&
    cache.get('CMAKE_HOME_DIRECTORY') === ROOT &&
    cache.get('CMAKE_CACHEFILE_DIR') === TREE &&
    cache.get('CMAKE_GENERATOR') === generator;
  if (usable) return;
  requireTools();
  fs.rmSync(TREE, { recursive: true, force: true });
}

/** The path of cmake-js's program, or null: it is a development dependency, absent where the package is installed. */
function findCmakeJs() {
  try {
    return path.join(path.dirname(require.resolve('cmake-js/package.json')), 'bin', 'cmake-js');
  } catch {
    return null;
  }
}

/** Configures, then builds; `configure` always runs, because `build` alone ignores changed options. */
function build() {
  const generator = succeeds('ninja', ['--version']) ? 'Ninja' : 'Unix Makefiles';
  prepareTree(generator);
  const jobs = String(os.availableParallelism());
  const definitions = { CMAKE_LIBRARY_OUTPUT_DIRECTORY: TREE, WARPGRAD_CUDA: process.env['WARPGRAD_CUDA'] || 'AUTO' };
  const cmakeJs = findCmakeJs();
  if (cmakeJs) {
    const common = ['--directory', ROOT, '--out', TREE, '--generator', generator, '--log-level', 'error'];
    const defined = Object.entries(definitions).map(([name, value]) => `--CD${name}=${value}`);
    run('configure', process.execPath, [cmakeJs, 'configure', ...common, ...defined]);
    run('build', process.execPath, [cmakeJs, 'build', ...common, '--parallel', jobs]);
    return;
  }
  const headers = path.join(path.dirname(require.resolve('node-api-headers/package.json')), 'include');
  const includes = [headers, path.dirname(require.resolve('node-addon-api/package.json'))];
  const options = { ...definitions, CMAKE_BUILD_TYPE: 'Release', WARPGRAD_NODE_INCLUDE: includes.join(';') };
  const defined = Object.entries(options).map(([name, value]) => `-D${name}=${value}`);
  run('configure', 'cmake', ['-S', ROOT, '-B', TREE, '-G', generator, ...defined]);
  run('build', 'cmake', ['--build', TREE, '--parallel', jobs]);
}

/** Renames into place: a running process may have the present file mapped. @param {string} folder */
function install(folder) {
  fs.mkdirSync(folder, { recursive: true });
  const temporary = path.join(folder, `.${BINARY}.${process.pid}`);
  fs.copyFileSync(path.join(TREE, BINARY), temporary);
  fs.renameSync(temporary, path.join(folder, BINARY));
}

/** Whether there is a binary already, built here or prebuilt, that this Node can load. */
function canLoad() {
  try {
    // @ts-expect-error: it has no types
    require('node-gyp-build')(ROOT);
    return true;
  } catch {
    return false;
  }
}

const { values } = parseArgs({
  options: {
    out: { type: 'string', default: path.join(ROOT, 'build', 'Release') },
    'if-missing': { type: 'boolean', default: false },
  },
});
if (!(values['if-missing'] && canLoad())) {
  build();
  install(path.resolve(values.out));
}
