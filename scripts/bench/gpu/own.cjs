'use strict';
// This package as one of the implementations that are measured.
const path = require('node:path');
const { ROOT, sizeOf } = require('./common.cjs');
const { peakBytes } = require('./memory.cjs');

/** @type {typeof import('../../../lib/index')} */
const { Stream } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/cli/measure')} */
const { summarize } = require(path.join(ROOT, 'dist/cli/measure.js'));

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('./operations.cjs').Part} Part
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/index').Device} Device
 * @typedef {import('./driver.cjs').Placement} Placement
 */

const WARM_UP = 3;
const OVERHEAD_CALLS = 20;

/** @param {Tensor} result @param {Part} part @returns {Promise<Float32Array>} */
async function read(result, { flat, slices }) {
  const views = [flat ? result.view([result.size]) : result];
  for (const [dim, [start, end]] of slices.entries()) views.push(views[dim].slice(dim, start, end));
  const converted = views[slices.length].to({ dtype: 'float32' });
  const values = await converted.data();
  for (const tensor of [...views, converted]) tensor.dispose();
  return /** @type {Float32Array} */ (values);
}

class Own {
  /** @type {Operation} */
  #operation;
  /** @type {Device} */
  #device;
  /** @type {Tensor} */
  #pool;
  /** @type {Case['options']} */
  #added;
  /** @type {Record<string, Tensor>[]} one a set of inputs */
  #inputs = [];
  /** @type {(() => Tensor[])[]} */
  #calls = [];
  /** @type {Case['options']} */
  #options = {};

  /** @param {Operation} operation @param {Tensor} pool of all numbers @param {string} [variant] of the operation */
  constructor(operation, pool, variant) {
    this.name = variant === undefined ? 'warpgrad' : `warpgrad ${variant}`;
    this.#operation = operation;
    this.#device = pool.device;
    this.#pool = pool;
    this.#added = variant === undefined ? {} : operation.variants[variant];
  }

  /** @param {Placement[]} sets @param {Case['options']} options */
  load(sets, options) {
    this.#options = { ...options, ...this.#added };
    this.#inputs = sets.map((placement) =>
      Object.fromEntries(
        Object.entries(placement).map(([name, { offset, shape }]) => {
          return [name, this.#pool.slice(0, offset, offset + sizeOf(shape)).view(shape)];
        }),
      ),
    );
    this.#calls = this.#inputs.map((inputs) => this.#operation.prepare(inputs, this.#options));
    return Promise.resolve(true);
  }

  /** Parts of the first results in higher precision. */
  reference() {
    return this.#operation.reference(this.#inputs[0], this.#options);
  }

  /** @returns {number[][]} */
  shapes() {
    const results = this.#calls[0]();
    for (const tensor of results) tensor.dispose();
    return results.map(({ shape }) => [...shape]);
  }

  /** @param {Part[]} parts @returns {Promise<Float32Array[]>} */
  async values(parts) {
    const results = this.#calls[0]();
    const values = await Promise.all(parts.map((part) => read(results[part.result], part)));
    for (const tensor of results) tensor.dispose();
    return values;
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

  /** @returns {Promise<import('./driver.cjs').Memory>} */
  async memory() {
    const call = this.#calls[0];
    const retained = /** @type {{ retained?: number }} */ (call).retained;
    return { peak: await peakBytes(call, this.#device), ...(retained !== undefined && { retained }) };
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
    }
    await stream.synchronize();
    return 1000 * summarize(times).middle;
  }
}

module.exports = { Own };
