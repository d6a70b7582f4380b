const { TestEnvironment } = require('jest-environment-node');

// What the addon returns and throws belongs to the main realm, and Jest runs tests in another one: with the main realm's
// classes as globals, `toBeInstanceOf` and `toEqual` see the same classes on both sides.
const SHARED = {
  ...{ Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array },
  ...{ Float32Array, Float64Array, BigInt64Array, BigUint64Array, ArrayBuffer, SharedArrayBuffer, DataView },
  ...{ Error, TypeError, RangeError, Promise },
};

module.exports = class extends TestEnvironment {
  /** @param {ConstructorParameters<typeof TestEnvironment>} args */
  constructor(...args) {
    super(...args);
    Object.assign(this.global, SHARED);
  }
};
