#!/usr/bin/env node
'use strict';
// Packs the GPU suite into one archive that runs on a GPU server without Node, compilers or network: Node itself, the addon,
// the tests and the training example compiled to JavaScript, with what they need, the golden data, the benchmarks. Usage: npm run gpu:bundle [-- --out FILE]
//
// There: tar -xf warpgrad-gpu.tar.xz && warpgrad-gpu/run.sh test
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { transformSync } = require('@swc/core');
const swcOptions = require('../../test/support/swc.cjs');
const { commit } = require('./machine.cjs');

const ROOT = path.resolve(__dirname, '../..');
const NAME = 'warpgrad-gpu';
const STAGE = path.join(ROOT, '.build', 'gpu-bundle', NAME);

/** What travels as it is. */
const COPIED = [
  ...[
    'package.json',
    'jest.config.cjs',
    'CMakeLists.txt',
    'native',
    'dist',
    'test/golden',
    'scripts/bench',
    'scripts/gpu',
  ],
  ...['scripts/native-sources.cjs'],
];
/** Folders whose TypeScript becomes JavaScript at the same place. */
const COMPILED = ['lib', 'test/gpu', 'test/support', 'examples/train'];
/** What runs there needs these and what they depend on. */
const PACKAGES = [
  ...['jest', 'jest-environment-node', 'node-gyp-build', 'cli-progress'],
  ...['long', 'seedrandom', 'vega', 'vega-lite', '@resvg/resvg-js'],
];
/** Of these, the files that the training example reads. */
const PARTS = {
  ...Object.fromEntries(
    ['', '-core', '-layers', '-converter', '-data', '-backend-cpu', '-backend-webgl', '-backend-wasm'].map((part) => [
      `@tensorflow/tfjs${part}`,
      /^dist\/([^/]*\.node\.js|[^/]*\.wasm)$/,
    ]),
  ),
  'dejavu-fonts-ttf': /^ttf\/DejaVuSans(-Bold)?\.ttf$/,
  typescript: /^lib\/lib\.dom\.d\.ts$/,
};
/** Nothing of a package that runs. */
const SUPERFLUOUS =
  /(\.d\.[cm]?ts|\.map|\.md|\.markdown|\.flow|\.ts|\.tsx|\.yml)$|\/(docs?|examples?|tests?|__tests__)$/;

/** @param {string} file relative to the root, as is every path here */
function copy(file) {
  fs.cpSync(path.join(ROOT, file), path.join(STAGE, file), { recursive: true, dereference: true });
}

/** @param {string} folder */
function compile(folder) {
  const entries = fs.readdirSync(path.join(ROOT, folder), { recursive: true, encoding: 'utf8' });
  for (const name of entries) {
    const [source, target] = [path.join(ROOT, folder, name), path.join(STAGE, folder, name)];
    if (/\.(cjs|json)$/.test(name)) copy(path.join(folder, name));
    if (!name.endsWith('.ts')) continue;
    const { code } = transformSync(fs.readFileSync(source, 'utf8'), {
      ...swcOptions,
      ...{ sourceMaps: false, filename: source, swcrc: false },
      module: { type: 'commonjs', ignoreDynamic: folder.startsWith('examples') }, // which import ES modules so
    });
    fs.mkdirSync(path.dirname(target), { recursive: true });
    fs.writeFileSync(target.replace(/\.ts$/, '.js'), code);
  }
}

/** The folder of a package as `require` in a folder finds it, or null. @param {string} name @param {string} from */
function findPackage(name, from) {
  for (let folder = from; folder.startsWith(ROOT); folder = path.dirname(folder)) {
    const found = path.join(folder, 'node_modules', name);
    if (fs.existsSync(path.join(found, 'package.json'))) return found;
  }
  return null;
}

/** The folders of the packages and of all that they depend on. @param {readonly string[]} names @returns {Set<string>} */
function closure(names) {
  /** @type {Set<string>} */
  const found = new Set();
  /** @param {string} name @param {string} from @param {boolean} optional */
  const visit = (name, from, optional) => {
    const folder = findPackage(name, from);
    if (!folder && !optional) throw new Error(`${name}, needed in ${from}, is not installed`);
    if (!folder || found.has(folder)) return;
    found.add(folder);
    const { dependencies = {}, optionalDependencies = {} } = JSON.parse(
      fs.readFileSync(path.join(folder, 'package.json'), 'utf8'),
    );
    for (const dependency of Object.keys({ ...dependencies, ...optionalDependencies })) {
      visit(dependency, folder, dependency in optionalDependencies);
    }
  };
  for (const name of names) visit(name, ROOT, false);
  return found;
}

/** @param {string} folder of a package */
function copyPackage(folder) {
  const nested = path.join(folder, 'node_modules');
  fs.cpSync(folder, path.join(STAGE, path.relative(ROOT, folder)), {
    recursive: true,
    filter: (source) => source !== nested && !SUPERFLUOUS.test(source.slice(folder.length)),
  });
}

/** @param {string} name of a package @param {RegExp} wanted */
function copyParts(name, wanted) {
  const folder = path.join('node_modules', name);
  const files = fs.readdirSync(path.join(ROOT, folder), { recursive: true, encoding: 'utf8' });
  for (const file of ['package.json', ...files.filter((file) => wanted.test(file))]) copy(path.join(folder, file));
}

/** A program or library without its symbols. @param {string} source @param {string} target */
function strip(source, target) {
  fs.mkdirSync(path.dirname(target), { recursive: true });
  execFileSync('strip', ['-o', target, source]);
}

const { values } = parseArgs({
  options: { out: { type: 'string', default: path.join(ROOT, 'build', `${NAME}.tar.xz`) } },
});
fs.rmSync(STAGE, { recursive: true, force: true });
fs.mkdirSync(STAGE, { recursive: true });
for (const file of COPIED) copy(file);
for (const folder of COMPILED) compile(folder);
for (const folder of closure(PACKAGES)) copyPackage(folder);
for (const [name, wanted] of Object.entries(PARTS)) copyParts(name, wanted);
strip(fs.realpathSync(process.execPath), path.join(STAGE, 'node'));
strip(path.join(ROOT, 'build/Release/warpgrad.node'), path.join(STAGE, 'build/Release/warpgrad.node'));
fs.renameSync(path.join(STAGE, 'scripts/gpu/run.sh'), path.join(STAGE, 'run.sh'));
fs.writeFileSync(path.join(STAGE, 'commit'), commit());
const out = path.resolve(values.out);
fs.mkdirSync(path.dirname(out), { recursive: true });
execFileSync('tar', ['-cJf', out, '-C', path.dirname(STAGE), NAME], { env: { XZ_OPT: '-T0', ...process.env } });
console.log(`${out}: ${(fs.statSync(out).size / 2 ** 20).toFixed(1)} MiB`);
