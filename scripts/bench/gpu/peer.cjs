'use strict';
// Implementations in a Python process of their own. One JSON object a line in, one out; peers/peer.py is the other side.
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

/**
 * @typedef {import('./operations.cjs').Case} Case
 * @typedef {import('./operations.cjs').Part} Part
 * @typedef {import('./driver.cjs').Placement} Placement
 */

/** The process of the peers ended, for a reason that it wrote to the error stream. */
class PeersLost extends Error {}

class PeerProcess {
  /** @type {import('node:child_process').ChildProcessByStdio<import('node:stream').Writable, import('node:stream').Readable, null>} */
  #child;
  /** @type {AsyncIterator<string>} */
  #lines;
  #lost = false;

  /**
   * @param {string} program in peers/ @param {string} numbers file of the block that the pool repeats
   * @param {number} poolSize @param {Record<string, string>} environment that is added
   */
  constructor(program, numbers, poolSize, environment) {
    this.#child = spawn('python3', [path.join(__dirname, 'peers', program), numbers, String(poolSize)], {
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { ...process.env, ...environment },
    });
    this.#child.on('error', () => {}); // seen as the end of its output
    this.#child.stdin.on('error', () => {});
    this.#lines = readline.createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** @param {string} command @param {object} [request] @returns {Promise<any>} @throws PeersLost */
  async ask(command, request = {}) {
    this.#child.stdin.write(`${JSON.stringify({ command, ...request })}\n`);
    const { value, done } = await this.#lines.next();
    if (!done) return JSON.parse(value);
    this.#lost = true;
    throw new PeersLost('the process of the peers ended; its error is above');
  }

  get lost() {
    return this.#lost;
  }

  stop() {
    this.#child.stdin.end();
  }
}

/** A process that ended is started anew for the next case, but not for ever. */
const MOST_STARTS = 3;

/** The implementations of a program. */
class Peers {
  /** @type {() => PeerProcess} */
  #start;
  /** @type {string} */
  #scratch;
  /** @type {PeerProcess | undefined} */
  #process;
  #starts = 0;
  /** @type {Peer[]} */
  #peers = [];
  /** @type {Record<string, string | number>} */
  versions = {};

  /** @param {() => PeerProcess} start @param {string} scratch a file */
  constructor(start, scratch) {
    this.#start = start;
    this.#scratch = scratch;
  }

  /** What there is to measure: nothing where their process can't be started. @returns {Promise<Peer[]>} */
  async present() {
    while (this.lost && this.#starts++ < MOST_STARTS) {
      const process = this.#start();
      this.#process = process;
      const info = await unlessLost(() => process.ask('info'));
      if (!info) continue;
      this.versions = info.versions;
      this.#peers = /** @type {string[]} */ (info.implementations).map(
        (name) => new Peer(process, name, this.#scratch),
      );
    }
    return this.lost ? [] : this.#peers;
  }

  get lost() {
    return this.#process?.lost ?? true;
  }

  stop() {
    this.#process?.stop();
  }
}

/** What a peer answers, or undefined where its process ended. @template T @param {() => Promise<T>} ask */
async function unlessLost(ask) {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof PeersLost)) throw error;
    return undefined;
  }
}

/** One implementation of that process. */
class Peer {
  /** @type {PeerProcess} */
  #process;
  /** @type {string} */
  #scratch;

  /** @param {PeerProcess} process @param {string} name @param {string} scratch a file */
  constructor(process, name, scratch) {
    this.#process = process;
    this.name = name;
    this.#scratch = scratch;
  }

  /** Whether it can run the case. @param {Placement[]} sets @param {Case['options']} options @returns {Promise<boolean>} */
  async load(sets, options) {
    const { supported } = await this.#process.ask('load', { implementation: this.name, sets, options });
    return supported;
  }

  /** @param {Part[]} parts @returns {Promise<Float32Array[]>} */
  async values(parts) {
    const { sizes } = await this.#process.ask('values', { implementation: this.name, parts, file: this.#scratch });
    const bytes = fs.readFileSync(this.#scratch);
    let at = bytes.byteOffset;
    return /** @type {number[]} */ (sizes).map((size) => {
      const values = new Float32Array(bytes.buffer, at, size);
      at += values.byteLength;
      return values;
    });
  }

  /** @returns {Promise<import('./driver.cjs').Memory>} */
  memory() {
    return this.#process.ask('memory', { implementation: this.name });
  }

  /** @param {number} milliseconds @returns {Promise<number>} */
  async time(milliseconds) {
    return (await this.#process.ask('time', { implementation: this.name, milliseconds })).ms;
  }
}

module.exports = { Peer, PeerProcess, Peers, PeersLost, unlessLost };
