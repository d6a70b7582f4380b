const { randomInt } = require('node:crypto');

/** @type {import('jest').Config} */
module.exports = {
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  testEnvironment: '<rootDir>/test/support/environment.cjs',
  modulePathIgnorePatterns: ['<rootDir>/(build|dist|prebuilds|\\.build)/'],
  transform: { '\\.ts$': ['@swc/jest', require('./test/support/swc.cjs')] },
  reporters: ['default', '<rootDir>/test/support/reporter.cjs'],
  // One seed a run, printed by the reporter: WARPGRAD_TEST_SEED=N repeats a run's random cases.
  globals: { warpgradTestSeed: Number(process.env.WARPGRAD_TEST_SEED ?? randomInt(2 ** 31)) },
  maxWorkers: 2,
  testTimeout: 60_000,
};
