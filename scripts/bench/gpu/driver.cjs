'use strict';
// Measures one operation beside its peers on one GPU. All implementations take turns case by case, in an order that rotates
// from round to round, each burst after a pause: whatever heats or slows the GPU falls on all alike. Results are checked
// before anything is timed, and an implementation that is wrong ends the run.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { commit, driverVersion } = require('../../gpu/machine.cjs');
const { OPERATIONS, ROOT } = require('./operations.cjs');
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
 * @typedef {object} Report
 * @property {string} operation
 * @property {string} device
 * @property {string | null} driver
 * @property {string} date
 * @property {Record<string, string | number>} versions
 * @property {string} commit
 * @property {Row[]} rows
 * @property {Record<string, { geometricMean: number, minimum: number }>} ratios of each other's time over this package's
 * @property {number} callOverheadMicroseconds median over the cases of what a call costs in JavaScript
 */

const ROUNDS = 5;
const QUICK_ROUNDS = 3;
const BURST_MILLISECONDS = 30;
const IDLE_MILLISECONDS = 120;
const SEED = 20250607;
/** Inputs of this size in all keep a second call from finding the first one's in the cache. */
const ROTATED_BYTES = 128 * 2 ** 20;
/** Norm of the error over norm of the result: the roundoff of bfloat16, about twice what a right result has. */
const ALLOWED_ERROR = 2 ** -8;

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
  const [a, b] = [decode(actual), decode(expected)];
  let [errors, squares] = [0, 0];
  for (let at = 0; at < b.length; at++) {
    errors += (a[at] - b[at]) ** 2;
    squares += b[at] ** 2;
  }
  return a.length === b.length ? Math.sqrt(errors / squares) : Infinity;
}

/**
 * Throws unless this package and every other implementation give the right results.
 * @param {Case} item @param {Own} own @param {(Own | Peer)[]} others
 */
async function verify(item, own, others) {
  const refuse = (/** @type {string} */ who, /** @type {number} */ error) => {
    throw new Error(`${item.label}: the result of ${who} is off by ${error.toExponential(1)}, so nothing was measured`);
  };
  const error = await own.error();
  if (!(error <= ALLOWED_ERROR)) refuse('warpgrad', error);
  const results = await own.results();
  for (const other of others) {
    const compared = await other.results();
    for (const [n, result] of results.entries()) {
      const apart = difference(compared[n] ?? [], result);
      if (!(apart <= 2 * ALLOWED_ERROR)) refuse(`warpgrad beside ${other.name}`, apart);
    }
  }
}

/**
 * @param {Case} item @param {Own} own @param {(Own | Peer)[]} others @param {number} rounds @param {() => void} step
 * @returns {Promise<{ rows: Row[], overhead: number }>}
 */
async function measureCase(item, own, others, rounds, step) {
  const sets = place(item);
  const present = [];
  await own.load(sets, item.options);
  for (const other of others) if (await other.load(sets, item.options)) present.push(other);
  await verify(item, own, present);
  const samples = [own, ...present].map((implementation) => ({ implementation, times: /** @type {number[]} */ ([]) }));
  for (let round = 0; round < rounds; round++) {
    for (let turn = 0; turn < samples.length; turn++) {
      const { implementation, times } = samples[(round + turn) % samples.length];
      await sleep(IDLE_MILLISECONDS);
      times.push(await implementation.time(BURST_MILLISECONDS));
    }
    step();
  }
  const rows = samples.map(({ implementation, times }) => {
    const { middle: ms, spread } = summarize(times);
    return { case: item.label, implementation: implementation.name, ms, spread, tflops: item.flops / ms / 1e9 };
  });
  return { rows, overhead: await own.overhead() };
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
  const cases = operation.cases.filter(({ label }) => !chosen || chosen.test(label));
  const { version, nodeVersion, cuda } = systemInfo();
  const gpu = cuda.devices.find(({ usable }) => usable);
  if (!gpu) throw new Error(`there is no usable GPU: ${cuda.reason}`);
  const shared = fs.existsSync('/dev/shm') ? '/dev/shm' : os.tmpdir();
  const folder = fs.mkdtempSync(path.join(shared, 'warpgrad-bench-'));
  const progress = new Progress(cases.length * (quick ? QUICK_ROUNDS : ROUNDS));
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
    for (const item of cases) {
      progress.label(item.label);
      const result = await measureCase(item, own, others, quick ? QUICK_ROUNDS : ROUNDS, () => progress.step());
      rows.push(...result.rows);
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
      callOverheadMicroseconds: summarize(overheads).middle,
    };
  } finally {
    progress.stop();
    process?.stop();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

module.exports = { measure, place, poolSize };
