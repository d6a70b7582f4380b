#!/usr/bin/env node
'use strict';
// Checks that includes and imports follow the arrow of the layers:
//
//   lib/cli, lib/integrations  ->  lib  ->  native/binding  ->  native/ops  ->  native/backends/{cpu,cuda}
//
// Everything native may use native/core. Usage: node scripts/check-layers.cjs [ROOT]
const fs = require('node:fs');
const path = require('node:path');

const NODE_HEADERS = /^(napi|node_api|js_native_api|node|uv|v8)[\w-]*\.h$/;
const CUDA_HEADERS = /^(cuda|cuda_[\w]+|cuda\/.+|driver_types|nvrtc)(\.h)?$/;

/**
 * A layer owns the files below `folder`, or that one file; the most specific owner counts. `uses` names the layers
 * that it may use beside itself; `headers` the foreign headers that it alone may include.
 * @typedef {{ folder: string, uses: string[], headers?: RegExp }} Layer
 */

/** @type {Layer[]} */
const LAYERS = [
  { folder: 'native/core', uses: [] },
  { folder: 'native/ops', uses: ['native/core'] },
  // The one place that knows the backends: it picks the one for a device.
  {
    folder: 'native/ops/registry.cc',
    uses: ['native/core', 'native/ops', 'native/backends/cpu', 'native/backends/cuda'],
  },
  { folder: 'native/binding', uses: ['native/core', 'native/ops'], headers: NODE_HEADERS },
  { folder: 'native/backends/cpu', uses: ['native/core', 'native/ops'] },
  { folder: 'native/backends/cuda', uses: ['native/core', 'native/ops'], headers: CUDA_HEADERS },
  { folder: 'lib', uses: [] },
  { folder: 'lib/reference', uses: [] },
  { folder: 'lib/integrations', uses: ['lib'] },
  { folder: 'lib/cli', uses: ['lib', 'lib/reference'] },
];

const NATIVE_SOURCE = /\.(h|cc|cu|cuh)$/;
const LIB_SOURCE = /\.m?ts$/;
const INCLUDE = /^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]/gm;
const IMPORT = /(?:\bfrom\s*|\bimport\s*\(?\s*|\brequire\s*\(\s*)['"]([^'"]+)['"]/g;

/** @param {string} file relative to the root @returns {Layer | undefined} */
function layerOf(file) {
  const owns = (/** @type {Layer} */ { folder }) => file === folder || file.startsWith(`${folder}/`);
  return LAYERS.filter(owns).sort((a, b) => b.folder.length - a.folder.length)[0];
}

/** @param {string} root @param {string} folder @param {RegExp} pattern @returns {string[]} relative to the root */
function listSources(root, folder, pattern) {
  const absolute = path.join(root, folder);
  if (!fs.existsSync(absolute)) return [];
  const entries = fs.readdirSync(absolute, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile() && pattern.test(entry.name))
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .sort();
}

/** @param {string} text @param {number} index */
function lineAt(text, index) {
  return text.slice(0, index).split('\n').length;
}

/** @param {string} root @param {string} file @returns {string[]} */
function checkNative(root, file) {
  const layer = layerOf(file);
  if (!layer) return [`${file}: belongs to no layer`];
  const text = fs.readFileSync(path.join(root, file), 'utf8');
  const violations = [];
  for (const match of text.matchAll(INCLUDE)) {
    const name = match[2];
    const where = `${file}:${lineAt(text, match.index)}`;
    const beside = path.join(path.dirname(file), name);
    const target = fs.existsSync(path.join(root, beside)) ? beside : path.join('native', name);
    const used = layerOf(target);
    if (fs.existsSync(path.join(root, target)) || (match[1] === '"' && used)) {
      if (!used) violations.push(`${where}: ${name} belongs to no layer`);
      else if (used !== layer && !layer.uses.includes(used.folder)) {
        violations.push(`${where}: ${layer.folder} must not include ${used.folder} (${name})`);
      }
    } else {
      if (NODE_HEADERS.test(name) && layer.headers !== NODE_HEADERS) {
        violations.push(`${where}: only native/binding includes Node's headers (${name})`);
      }
      if (CUDA_HEADERS.test(name) && layer.headers !== CUDA_HEADERS) {
        violations.push(`${where}: only native/backends/cuda includes CUDA's headers (${name})`);
      }
    }
  }
  return violations;
}

/** @param {string} root @param {string} file @returns {string[]} */
function checkLib(root, file) {
  const layer = /** @type {Layer} */ (layerOf(file));
  const text = fs.readFileSync(path.join(root, file), 'utf8');
  const violations = [];
  for (const match of text.matchAll(IMPORT)) {
    const name = match[1];
    const where = `${file}:${lineAt(text, match.index)}`;
    if (name === 'node-gyp-build' && file !== 'lib/native.ts') {
      violations.push(`${where}: only lib/native.ts loads the addon`);
    }
    if (!name.startsWith('.')) continue;
    const used = layerOf(path.join(path.dirname(file), name));
    if (!used?.folder.startsWith('lib')) violations.push(`${where}: lib must not import from outside lib (${name})`);
    else if (used !== layer && !layer.uses.includes(used.folder)) {
      violations.push(`${where}: ${layer.folder} must not import ${used.folder} (${name})`);
    }
  }
  return violations;
}

/** Every include and import below `root` that goes against the arrow, one line each. @param {string} root */
function findViolations(root) {
  return [
    ...listSources(root, 'native', NATIVE_SOURCE).flatMap((file) => checkNative(root, file)),
    ...listSources(root, 'lib', LIB_SOURCE).flatMap((file) => checkLib(root, file)),
  ];
}

module.exports = { findViolations };

if (require.main === module) {
  const violations = findViolations(path.resolve(process.argv[2] ?? path.join(__dirname, '..')));
  for (const violation of violations) console.error(violation);
  process.exitCode = violations.length === 0 ? 0 : 1;
}
