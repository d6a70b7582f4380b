'use strict';
// What flash-linear-attention compiles and tunes before it is measured, kept in a folder from run to run. Compiling takes
// processors alone, so that it begins while other operations are measured; tuning takes the GPU.
const { spawn } = require('node:child_process');
const events = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const PROGRAM = path.join(__dirname, 'peers/tune_kda.py');
/** Compiling must not slow down the process that measures. */
const PRIORITY = 10;

class PeerCache {
  /** @type {string} */
  #folder;
  /** @type {import('node:child_process').ChildProcess | undefined} */
  #tuning;

  /** @param {string} folder made when something is to be kept */
  constructor(folder) {
    this.#folder = path.resolve(folder);
  }

  /** What tells the processes of the peers of it. */
  get environment() {
    const inside = (/** @type {string} */ name) => path.join(this.#folder, name);
    return { FLA_CACHE_MODE: 'full', FLA_CONFIG_DIR: inside('configs'), TRITON_CACHE_DIR: inside('triton') };
  }

  /** Begins to fill it, if it is empty. @param {import('./operations.cjs').Case[]} cases of steps of training */
  start(cases) {
    if (fs.existsSync(path.join(this.#folder, 'configs'))) return;
    const wanted = JSON.stringify(cases.map(({ inputs, options }) => ({ inputs, options })));
    const child = spawn('python3', [PROGRAM, this.#folder, wanted], { stdio: ['pipe', 'ignore', 'inherit'] });
    child.on('error', () => {}); // no Python, no peers: the next process says so
    child.stdin.on('error', () => {});
    if (child.pid === undefined) return;
    os.setPriority(child.pid, PRIORITY);
    this.#tuning = child;
  }

  /** Waits until it is full, or tells that it can't be: from now on tuning has the GPU for itself. */
  async ready() {
    const child = this.#tuning;
    if (!child) return true;
    child.stdin?.end('go\n');
    if (child.exitCode === null) await events.once(child, 'exit');
    if (child.exitCode !== 0) return false;
    this.#tuning = undefined;
    return true;
  }

  /** Lets what is under way end by itself, unused. */
  abandon() {
    this.#tuning?.stdin?.destroy();
    this.#tuning?.unref();
  }
}

module.exports = { PeerCache };
