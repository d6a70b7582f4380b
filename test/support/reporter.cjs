const { writeSync } = require('node:fs');

/**
 * Prints the seed of the run's random cases, at the start and at the end, and as the very last line
 * `N passed, N failed, N skipped`. A file that could not run at all counts as one failure.
 * @implements {Pick<import('@jest/reporters').Reporter, 'onTestFileStart' | 'onRunComplete'>}
 */
module.exports = class {
  /** @type {unknown} */
  #seed;

  /** @param {import('@jest/reporters').Test} test */
  onTestFileStart(test) {
    if (this.#seed !== undefined) return;
    this.#seed = test.context.config.globals.warpgradTestSeed;
    this.#printSeed();
  }

  /**
   * @param {unknown} _contexts
   * @param {import('@jest/reporters').AggregatedResult} results
   */
  onRunComplete(_contexts, results) {
    const failed = results.numFailedTests + results.numRuntimeErrorTestSuites;
    const skipped = results.numPendingTests + results.numTodoTests;
    process.on('exit', () => {
      this.#printSeed();
      writeSync(1, `${results.numPassedTests} passed, ${failed} failed, ${skipped} skipped\n`);
    });
  }

  #printSeed() {
    writeSync(1, `Random cases: repeat with WARPGRAD_TEST_SEED=${this.#seed}\n`);
  }
};
