'use strict';
// This package as one of the implementations that are measured.
const path = require('node:path');
const { float64, ROOT } = require('./operations.cjs');

/** @type {typeof import('../../../lib/index')} */
const { Stream, Tensor } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/cli/measure')} */
const { summarize } = require(path.join(ROOT, 'dist/cli/measure.js'));

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/index').Device} Device
 * @typedef {import('./driver.cjs').Placement} Placement
 */

const WARM_UP = 3;
const OVERHEAD_CALLS = 200;

class Own {
  name = 'warpgrad';
  /** @type {Operation} */
  #operation;
  /** @type {Device} */
  #device;
  /** @type {Tensor} */
  #pool;
  /** @type {Record<string, Tensor>[]} one a set of inputs */
  #inputs = [];
  /** @type {(() => Tensor[])[]} */
  #calls = [];
  /** @type {Case['options']} */
  #options = {};

  /** @param {Operation} operation @param {Device} device @param {Uint16Array} numbers */
  constructor(operation, device, numbers) {
    this.#operation = operation;
    this.#device = device;
    this.#pool = Tensor.from(numbers, [numbers.length], { dtype: 'bfloat16', device });
  }

  /** @param {Placement[]} sets @param {Case['options']} options */
  load(sets, options) {
    this.#options = options;
    this.#inputs = sets.map((placement) =>
      Object.fromEntries(
        Object.entries(placement).map(([name, { offset, shape }]) => {
          const size = shape.reduce((product, extent) => product * extent, 1);
          return [name, this.#pool.slice(0, offset, offset + size).view(shape)];
        }),
      ),
    );
    this.#calls = this.#inputs.map((inputs) => this.#operation.prepare(inputs, options));
    return Promise.resolve(true);
  }

  /** Bits of the first result. */
  async result() {
    const [first, ...others] = this.#calls[0]();
    const bits = await first.data();
    for (const tensor of [first, ...others]) tensor.dispose();
    return /** @type {Uint16Array} */ (bits);
  }

  /** How far a part of the first result is from float64: norm of the error over norm. */
  async error() {
    const { part, expected } = await this.#operation.reference(this.#inputs[0], this.#options);
    const results = this.#calls[0]();
    const { data } = await float64(part(results[0]).contiguous());
    for (const tensor of results) tensor.dispose();
    const norm = (/** @type {Float64Array} */ values) => Math.hypot(...values);
    return norm(data.map((value, at) => value - expected[at])) / norm(expected);
  }

  /** @param {number} milliseconds of the burst @returns {Promise<number>} milliseconds of the median call */
  async time(milliseconds) {
    const stream = Stream.current(this.#device);
    const call = (/** @type {number} */ n) => {
      for (const tensor of this.#calls[n % this.#calls.length]()) tensor.dispose();
      return stream.record();
    };
    const warm = [stream.record()];
    for (let n = 0; n < WARM_UP; n++) warm.push(call(n));
    const estimate = await warm[WARM_UP].elapsedSince(warm[WARM_UP - 1]);
    const events = [stream.record()];
    for (let n = 0; n < Math.max(5, milliseconds / estimate); n++) events.push(call(n));
    const times = [];
    for (let n = 1; n < events.length; n++) times.push(await events[n].elapsedSince(events[n - 1]));
    return summarize(times).middle;
  }

  /** Microseconds until a call returns, with the GPU busy or not. */
  async overhead() {
    const stream = Stream.current(this.#device);
    const times = [];
    for (let n = 0; n < OVERHEAD_CALLS; n++) {
      const start = performance.now();
      const results = this.#calls[0]();
      times.push(performance.now() - start);
      for (const tensor of results) tensor.dispose();
      if (n % 20 === 19) await stream.synchronize();
    }
    return 1000 * summarize(times).middle;
  }
}

module.exports = { Own };
