const path = require('node:path');
const base = require('../../jest.config.cjs');

// The suite in the GPU archive: compiled beforehand, nothing but Node at hand.
/** @type {import('jest').Config} */
module.exports = {
  ...base,
  rootDir: path.resolve(__dirname, '../..'),
  testMatch: ['<rootDir>/test/gpu/**/*.test.js'],
  transform: {},
  haste: { forceNodeFilesystemAPI: true },
  watchman: false,
};
