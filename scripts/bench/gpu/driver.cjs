'use strict';
// Measures one operation beside its peers on one GPU. All implementations take turns case by case, in an order that rotates
// from round to round, each burst after a pause: whatever heats or slows the GPU falls on all alike. Results are checked
// before anything is timed, and an implementation that is wrong ends the run.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { commit, driverVersion } = require('../../gpu/machine.cjs');
const { ROOT } = require('./common.cjs');
const { OPERATIONS } = require('./operations.cjs');
const { Own } = require('./own.cjs');
const { Peer, PeerProcess } = require('./peer.cjs');
const { decode, normalNumbers, writeNumbers } = require('./pool.cjs');

/** @type {typeof import('../../../lib/index')} */
const { systemInfo, Tensor } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/cli/measure')} */
const { summarize } = require(path.join(ROOT, 'dist/cli/measure.js'));
/** @type {typeof import('../../../lib/cli/progress')} */
const { Progress } = require(path.join(ROOT, 'dist/cli/progress.js'));

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {Record<string, { offset: number, shape: number[] }>} Placement where in the pool each input lies
 *
 * @typedef {object} Row
 * @property {string} case
 * @property {string} implementation
 * @property {number} ms median over the rounds of the median call of a burst
 * @property {number} spread distance of the quartiles over the rounds over the median
 * @property {number} tflops
 *
 * @typedef {object} Memory in bytes
 * @property {number} peak the most that a call takes besides its inputs
 * @property {number} [retained] what a backward needs of the forward besides its inputs
 *
 * @typedef {object} Effort
 * @property {number} rounds
 * @property {number} burst milliseconds
 *
 * @typedef {object} Report
 * @property {string} operation
 * @property {string} device
 * @property {string | null} driver
 * @property {string} date
 * @property {Record<string, string | number>} versions
 * @property {string} commit
 * @property {Row[]} rows
 * @property {Record<string, { geometricMean: number, minimum: number }>} ratios of each other's time over this package's
 * @property {({ case: string, implementation: string } & Memory)[]} memory
 * @property {number} callOverheadMicroseconds median over the cases of what a call costs in JavaScript
 */

/** @type {Effort} */
const FULL = { rounds: 5, burst: 30 };
/** @type {Effort} */
const QUICK = { rounds: 3, burst: 15 };
const IDLE_MILLISECONDS = 120;
const SEED = 20250607;
/** Inputs of this size in all keep a second call from finding the first one's in the cache. */
const ROTATED_BYTES = 128 * 2 ** 20;
/** Of larger results, which are compared with the peers', so many evenly spaced windows of so many elements. */
const WINDOWS = 64;
const WINDOW_SIZE = 2 ** 15;

const sizeOf = (/** @type {number[]} */ shape) => shape.reduce((product, extent) => product * extent, 1);

/** Places as many sets of inputs in the pool as the cache makes necessary. @param {Case} item @returns {Placement[]} */
function place({ inputs }) {
  const bytes = 2 * Object.values(inputs).reduce((sum, shape) => sum + sizeOf(shape), 0);
  let offset = 0;
  return Array.from({ length: Math.max(1, Math.ceil(ROTATED_BYTES / bytes)) }, () =>
    Object.fromEntries(
      Object.entries(inputs).map(([name, shape]) => {
        const at = offset;
        offset += Math.ceil(sizeOf(shape) / 64) * 64;
        return [name, { offset: at, shape }];
      }),
    ),
  );
}

/** @param {Case[]} cases */
function poolSize(cases) {
  const ends = cases.flatMap((item) =>
    place(item).flatMap((set) => Object.values(set).map(({ offset, shape }) => offset + sizeOf(shape))),
  );
  return Math.max(...ends);
}

/** Norm of the difference over norm. @param {Uint16Array} actual @param {Uint16Array} expected bits of bfloat16 */
function difference(actual, expected) {
  if (actual.length !== expected.length) return Infinity;
  const windows = Math.min(WINDOWS, Math.ceil(expected.length / WINDOW_SIZE));
  let [errors, squares] = [0, 0];
  for (let n = 0; n < windows; n++) {
    const start = Math.floor((n * expected.length) / windows);
    const [a, b] = [actual, expected].map((bits) => decode(bits.subarray(start, start + WINDOW_SIZE)));
    for (let at = 0; at < b.length; at++) {
      errors += (a[at] - b[at]) ** 2;
      squares += b[at] ** 2;
    }
  }
  return Math.sqrt(errors / squares);
}

/**
 * Throws unless this package and every other implementation give the right results.
 * @param {Case} item @param {number} allowed error @param {Own} own @param {(Own | Peer)[]} others
 */
async function verify(item, allowed, own, others) {
  const refuse = (/** @type {string} */ who, /** @type {number} */ error) => {
    throw new Error(`${item.label}: the result of ${who} is off by ${error.toExponential(1)}, so nothing was measured`);
  };
  const error = await own.error();
  if (!(error <= allowed)) refuse('warpgrad', error);
  const results = await own.results();
  for (const other of others) {
    const compared = await other.results();
    for (const [n, result] of results.entries()) {
      const apart = difference(compared[n] ?? [], result);
      if (!(apart <= 2 * allowed)) refuse(`warpgrad beside ${other.name}`, apart);
    }
  }
}

/**
 * @param {Case} item @param {number} allowed error @param {Own} own @param {(Own | Peer)[]} others @param {Effort} effort
 * @param {() => void} step
 * @returns {Promise<{ rows: Row[], overhead: number, memory: Report['memory'] }>}
 */
async function measureCase(item, allowed, own, others, { rounds, burst }, step) {
  const sets = place(item);
  const present = [];
  await own.load(sets, item.options);
  for (const other of others) if (await other.load(sets, item.options)) present.push(other);
  await verify(item, allowed, own, present);
  const samples = [own, ...present].map((implementation) => ({ implementation, times: /** @type {number[]} */ ([]) }));
  for (let round = 0; round < rounds; round++) {
    for (let turn = 0; turn < samples.length; turn++) {
      const { implementation, times } = samples[(round + turn) % samples.length];
      await sleep(IDLE_MILLISECONDS);
      times.push(await implementation.time(burst));
    }
    step();
  }
  const rows = samples.map(({ implementation, times }) => {
    const { middle: ms, spread } = summarize(times);
    return { case: item.label, implementation: implementation.name, ms, spread, tflops: item.flops / ms / 1e9 };
  });
  const memory = [];
  for (const implementation of item.memory ? [own, ...present] : []) {
    memory.push({ case: item.label, implementation: implementation.name, ...(await implementation.memory()) });
  }
  return { rows, overhead: await own.overhead(), memory };
}

/** @param {Row[]} rows @returns {Report['ratios']} */
function ratiosOf(rows) {
  /** @type {Record<string, number[]>} */
  const ratios = {};
  for (const row of rows) {
    const own = rows.find((other) => other.case === row.case && other.implementation === 'warpgrad');
    if (own && own !== row) (ratios[row.implementation] ??= []).push(row.ms / own.ms);
  }
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const summaries = Object.entries(ratios).map(([name, values]) => [
    name,
    { geometricMean: Math.exp(mean(values.map(Math.log))), minimum: Math.min(...values) },
  ]);
  return Object.fromEntries(summaries);
}

/**
 * @param {string} name of the operation @param {{ quick: boolean, peers: boolean, cases?: RegExp }} options
 * @returns {Promise<Report>}
 */
async function measure(name, { quick, peers: wanted, cases: chosen }) {
  const operation = OPERATIONS[name];
  const effort = quick ? QUICK : FULL;
  const cases = operation.cases.filter(({ label, thorough }) => (chosen ? chosen.test(label) : !(quick && thorough)));
  const { version, nodeVersion, cuda } = systemInfo();
  const gpu = cuda.devices.find(({ usable }) => usable);
  if (!gpu) throw new Error(`there is no usable GPU: ${cuda.reason}`);
  const shared = fs.existsSync('/dev/shm') ? '/dev/shm' : os.tmpdir();
  const folder = fs.mkdtempSync(path.join(shared, 'warpgrad-bench-'));
  const progress = new Progress(cases.length * effort.rounds);
  /** @type {PeerProcess | undefined} */
  let process;
  try {
    const numbers = normalNumbers(poolSize(cases), SEED);
    const pool = Tensor.from(numbers, [numbers.length], { dtype: 'bfloat16', device: `cuda:${gpu.index}` });
    const own = new Own(operation, pool);
    /** @type {(Own | Peer)[]} */
    const others = Object.keys(operation.variants).map((variant) => new Own(operation, pool, variant));
    let versions = {};
    if (wanted) {
      writeNumbers(path.join(folder, 'numbers'), numbers);
      const python = (process = new PeerProcess(operation.peers, path.join(folder, 'numbers')));
      const info = await python.ask('info');
      versions = info.versions;
      for (const peer of info.implementations) others.push(new Peer(python, peer, path.join(folder, 'result')));
    }
    const [rows, overheads] = [/** @type {Row[]} */ ([]), /** @type {number[]} */ ([])];
    const memory = [];
    for (const item of cases) {
      progress.label(item.label);
      const step = () => progress.step();
      const result = await measureCase(item, operation.allowedError, own, others, effort, step);
      rows.push(...result.rows);
      memory.push(...result.memory);
      overheads.push(result.overhead);
    }
    return {
      operation: name,
      device: gpu.name,
      driver: driverVersion(),
      date: new Date().toISOString(),
      versions: { warpgrad: version, node: nodeVersion, cuda: cuda.driverVersion ?? 'unknown', ...versions },
      commit: commit(),
      rows,
      ratios: ratiosOf(rows),
      memory,
      callOverheadMicroseconds: summarize(overheads).middle,
    };
  } finally {
    progress.stop();
    process?.stop();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

module.exports = { measure, place, poolSize };
