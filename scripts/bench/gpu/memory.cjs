'use strict';
// How much memory of a GPU a call takes.
const path = require('node:path');
const { ROOT } = require('./common.cjs');

/** @type {typeof import('../../../lib/index')} */
const { Stream, Tensor, WarpgradError } = require(path.join(ROOT, 'dist/index.js'));

/**
 * @typedef {import('../../../lib/index').Tensor} Tensor
 * @typedef {import('../../../lib/index').Device} Device
 */

const PRECISION_BYTES = 16 * 2 ** 20;

/** What the work does, or null where there is too little memory. @template T @param {() => T} work @returns {T | null} */
function unlessTooLittle(work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof WarpgradError && error.code === 'ERR_WARPGRAD_OUT_OF_MEMORY') return null;
    throw error;
  }
}

/** Free bytes of a GPU, from what a request for far too much answers. @param {Device} device */
function freeBytes(device) {
  try {
    Tensor.empty([2 ** 42], { device }).dispose();
  } catch (error) {
    const found = /(\d+) of \d+ bytes are free/.exec(/** @type {Error} */ (error).message);
    if (found) return Number(found[1]);
  }
  throw new Error(`${device} does not say how much memory is free`);
}

/** The least memory with which a call works: all else is taken first. @param {() => Tensor[]} call @param {Device} device */
async function peakBytes(call, device) {
  const stream = Stream.current(device);
  await stream.synchronize();
  freeBytes(device); // what is kept is given back by the stream, so that only a second answer counts it
  await stream.synchronize();
  const free = freeBytes(device);
  const worksWith = async (/** @type {number} */ bytes) => {
    const filler = unlessTooLittle(() => Tensor.empty([Math.floor((free - bytes) / 4)], { device }));
    const results = filler && unlessTooLittle(call);
    for (const tensor of [...(results ?? []), ...(filler ? [filler] : [])]) tensor.dispose();
    await stream.synchronize();
    return results !== null;
  };
  let [tooLittle, enough] = [0, free];
  while (enough - tooLittle > PRECISION_BYTES) {
    const middle = (tooLittle + enough) / 2;
    if (await worksWith(middle)) enough = middle;
    else tooLittle = middle;
  }
  freeBytes(device); // the refusal makes this process give back what it keeps, which the peers need
  return enough;
}

module.exports = { peakBytes };
