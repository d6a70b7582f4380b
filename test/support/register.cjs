// `node -r test/support/register.cjs script.ts` runs TypeScript as the tests do: for tests that need a process or a worker
// thread of their own.
const { readFileSync } = require('node:fs');
const { Module } = require('node:module');
const { transformSync } = require('@swc/core');
const options = require('./swc.cjs');

/** @type {any} */ (Module)._extensions['.ts'] = (/** @type {any} */ module, /** @type {string} */ filename) => {
  const { code } = transformSync(readFileSync(filename, 'utf8'), { ...options, filename, swcrc: false });
  module._compile(code, filename);
};
