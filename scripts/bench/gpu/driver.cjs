'use strict';
// Measures one operation beside its peers on one GPU. All implementations take turns case by case, in an order that rotates
// from round to round, each burst after a pause: whatever heats or slows the GPU falls on all alike. Results are checked
// before anything is timed: a case in which this package is wrong is not measured, and fails the run in the end; a peer that
// is wrong is left out of the case.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { commit, driverVersion } = require('../../gpu/machine.cjs');
const { differences, windows, worst } = require('./checks.cjs');
const { ROOT, sizeOf } = require('./common.cjs');
const { OPERATIONS } = require('./operations.cjs');
const { Own } = require('./own.cjs');
const { PeerProcess, Peers, unlessLost } = require('./peer.cjs');
const { normalNumbers, repeated, writeNumbers } = require('./pool.cjs');
const { ratiosOf } = require('./ratios.cjs');

/** @type {typeof import('../../../lib/index')} */
const { systemInfo } = require(path.join(ROOT, 'dist/index.js'));
/** @type {typeof import('../../../lib/cli/measure')} */
const { summarize } = require(path.join(ROOT, 'dist/cli/measure.js'));
/** @type {typeof import('../../../lib/cli/progress')} */
const { Progress } = require(path.join(ROOT, 'dist/cli/progress.js'));

/**
 * @typedef {import('./operations.cjs').Operation} Operation
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('./peer.cjs').Peer} Peer
 * @typedef {import('./peercache.cjs').PeerCache} PeerCache
 * @typedef {Record<string, { offset: number, shape: number[] }>} Placement where in the pool each input lies
 *
 * @typedef {object} Row
 * @property {string} case
 * @property {string} implementation
 * @property {number} ms median over the rounds of the median call of a burst
 * @property {number} spread distance of the quartiles over the rounds over the median
 * @property {number} tflops
 * @property {Record<string, number>} errors by result: norm of the error over norm
 * @property {Case['curves']} [curves]
 *
 * @typedef {object} Absence of an implementation from a case
 * @property {string} case
 * @property {string} implementation
 * @property {string} reason
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
 * @property {string[]} failures what was not measured because of an error: cases, the peers
 * @property {Row[]} rows
 * @property {Absence[]} [absences] what else has no row; reports of before do not say it
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
/** Why a peer has no row. */
const [REFUSED, LOST] = ["it can't run the case", 'its process ended'];
/** A peer whose error is so many times what is allowed to this package is wrong. */
const PEER_ALLOWANCE = 4;

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

/**
 * The implementations that give the right results, with their errors.
 * @param {Case} item @param {Operation} operation @param {Own} own @param {(Own | Peer)[]} others
 * @param {Map<string, string>} reasons gets why one is left out, by its name
 * @throws where this package does not
 */
async function verified(item, { results, allowedError }, own, others, reasons) {
  const blocks = await own.reference();
  const parts = blocks.map(({ part }) => part);
  const expected = blocks.map(({ expected }) => expected);
  const everywhere = windows(results, own.shapes());
  const ownWindows = await own.values(everywhere);
  const right = [];
  for (const implementation of [own, ...others]) {
    const given = await unlessLost(() => implementation.values(parts));
    const values = implementation === own ? ownWindows : await unlessLost(() => implementation.values(everywhere));
    if (!given || !values) {
      reasons.set(implementation.name, LOST);
      continue;
    }
    const errors = differences(results, parts, given, expected);
    const apart = worst(differences(results, everywhere, values, ownWindows));
    const mine = implementation instanceof Own;
    const allowed = mine ? allowedError : PEER_ALLOWANCE * allowedError;
    if (worst(errors) <= allowed && apart <= allowed + allowedError) right.push({ implementation, errors });
    else {
      const found = [...Object.entries(errors), ['apart from warpgrad', apart]].map(
        ([name, error]) => `${name} ${error}`,
      );
      const message = `${item.label}: ${implementation.name} is wrong: ${found.join(', ')}`;
      if (mine) throw new Error(message);
      reasons.set(implementation.name, 'its results are wrong');
      console.error(message);
    }
  }
  return right;
}

/**
 * @param {Case} item @param {Operation} operation @param {Own} own @param {(Own | Peer)[]} others @param {Effort} effort
 * @param {() => void} step
 * @returns {Promise<{ rows: Row[], absences: Absence[], overhead: number, memory: Report['memory'] }>}
 */
async function measureCase(item, operation, own, others, { rounds, burst }, step) {
  const sets = place(item);
  const present = [];
  const reasons = /** @type {Map<string, string>} */ (new Map());
  await own.load(sets, item.options);
  for (const other of others) {
    const loaded = await unlessLost(() => other.load(sets, item.options));
    if (loaded) present.push(other);
    else reasons.set(other.name, loaded === undefined ? LOST : REFUSED);
  }
  const right = await verified(item, operation, own, present, reasons);
  const samples = right.map((found) => ({ ...found, times: /** @type {(number | undefined)[]} */ ([]) }));
  for (let round = 0; round < rounds; round++) {
    for (let turn = 0; turn < samples.length; turn++) {
      const { implementation, times } = samples[(round + turn) % samples.length];
      await sleep(IDLE_MILLISECONDS);
      times.push(await unlessLost(() => implementation.time(burst)));
    }
    step();
  }
  const rows = samples.flatMap(({ implementation, times, errors }) => {
    if (times.includes(undefined)) {
      reasons.set(implementation.name, LOST);
      return [];
    }
    const { middle: ms, spread } = summarize(/** @type {number[]} */ (times));
    const timed = { case: item.label, implementation: implementation.name, ms, spread, tflops: item.flops / ms / 1e9 };
    return { ...timed, errors, ...(item.curves && { curves: item.curves }) };
  });
  const memory = [];
  for (const { implementation } of item.memory ? right : []) {
    const taken = await unlessLost(() => implementation.memory());
    if (taken) memory.push({ case: item.label, implementation: implementation.name, ...taken });
  }
  const absences = Array.from(reasons, ([implementation, reason]) => ({ case: item.label, implementation, reason }));
  return { rows, absences, overhead: await own.overhead(), memory };
}

/**
 * @typedef {object} Wanted
 * @property {boolean} quick
 * @property {PeerCache | null} peers null: this package alone
 * @property {RegExp} [cases]
 * @property {(report: Report, done: Row[]) => Promise<void>} onCase told of the report so far, and of the rows that are new,
 * if any
 *
 * @param {string} name of the operation @param {Wanted} wanted @returns {Promise<Report>}
 */
async function measure(name, { quick, peers, cases: chosen, onCase }) {
  const operation = OPERATIONS[name];
  const effort = quick ? QUICK : FULL;
  const cases = operation.cases.filter(({ label, thorough }) => (chosen ? chosen.test(label) : !(quick && thorough)));
  const { version, nodeVersion, cuda } = systemInfo();
  const gpu = cuda.devices.find(({ usable }) => usable);
  if (!gpu) throw new Error(`there is no usable GPU: ${cuda.reason}`);
  const shared = fs.existsSync('/dev/shm') ? '/dev/shm' : os.tmpdir();
  const folder = fs.mkdtempSync(path.join(shared, 'warpgrad-bench-'));
  const inFolder = (/** @type {string} */ file) => path.join(folder, file);
  const progress = new Progress(cases.length * effort.rounds);
  /** @type {Peers | undefined} */
  let python;
  try {
    const [numbers, size] = [normalNumbers(SEED), poolSize(cases)];
    const pool = repeated(numbers, size, `cuda:${gpu.index}`);
    const own = new Own(operation, pool);
    const variants = Object.keys(operation.variants).map((variant) => new Own(operation, pool, variant));
    if (peers) {
      writeNumbers(inFolder('numbers'), numbers);
      const start = () => new PeerProcess(operation.peers, inFolder('numbers'), size, peers.environment);
      python = new Peers(start, inFolder('values'));
    }
    await python?.present();
    const failures = python?.lost ? ['the peers, whose process ended'] : [];
    const overheads = /** @type {number[]} */ ([]);
    const absences = /** @type {Absence[]} */ ([]);
    /** @type {Report} */
    const report = {
      operation: name,
      device: gpu.name,
      driver: driverVersion(),
      date: new Date().toISOString(),
      versions: { warpgrad: version, node: nodeVersion, cuda: cuda.driverVersion ?? 'unknown', ...python?.versions },
      commit: commit(),
      failures,
      rows: [],
      absences,
      ratios: {},
      memory: [],
      callOverheadMicroseconds: NaN,
    };
    for (const item of cases) {
      progress.label(item.label);
      /** @type {Row[]} */
      let rows = [];
      try {
        const others = [...variants, ...((await python?.present()) ?? [])];
        const measured = await measureCase(item, operation, own, others, effort, () => progress.step());
        rows = measured.rows;
        report.rows.push(...rows);
        absences.push(...measured.absences);
        report.memory.push(...measured.memory);
        report.ratios = ratiosOf(report.rows);
        overheads.push(measured.overhead);
        report.callOverheadMicroseconds = summarize(overheads).middle;
      } catch (error) {
        const { message } = /** @type {Error} */ (error);
        report.failures.push(message.startsWith(item.label) ? message : `${item.label}: ${message}`);
        console.error(message);
      }
      await onCase(report, rows);
    }
    return report;
  } finally {
    progress.stop();
    python?.stop();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

module.exports = { measure, place, poolSize };
