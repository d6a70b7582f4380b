'use strict';
// Runs attention on request, for a driver in another language that measures peers beside it: one JSON object a line in, one
// out. `load` reads q, k, v and dOut, float32 one after the other, from a file; `check` writes out, dq, dk and dv likewise;
// `time` gives the milliseconds of calls for about `seconds`, without the first one.
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

/** @type {typeof import('../../lib/index')} */
const warpgrad = require(path.resolve(__dirname, '../../dist/index.js'));
const { attentionBackward, attentionForward, configure, Stream, systemInfo, Tensor } = warpgrad;

/**
 * @typedef {import('../../lib/index').Tensor} Tensor
 * @typedef {{ file: string, shape: number[], dtype: 'float32' | 'bfloat16', causal: boolean }} LoadRequest
 * @typedef {{ pass: 'forward' | 'backward', threads: number, seconds: number }} TimeRequest
 * @typedef {Record<'q' | 'k' | 'v' | 'dOut' | 'out' | 'lse', Tensor> & { options: { causal: boolean } }} Problem
 */

/** @type {Problem} */
let problem;

/** @param {LoadRequest} request */
function load({ file, shape, dtype, causal }) {
  const bytes = fs.readFileSync(file);
  const size = shape.reduce((product, dim) => product * dim, 1);
  const [q, k, v, dOut] = [0, 1, 2, 3].map((i) =>
    Tensor.from(new Float32Array(bytes.buffer, bytes.byteOffset + i * size * 4, size), shape, { dtype }),
  );
  const options = { causal };
  problem = { q, k, v, dOut, options, ...attentionForward(q, k, v, options) };
  return {};
}

function forward() {
  return attentionForward(problem.q, problem.k, problem.v, problem.options);
}

function backward() {
  const { dOut, q, k, v, out, lse, options } = problem;
  return attentionBackward(dOut, q, k, v, out, lse, options);
}

/** @param {{ file: string }} request */
function check({ file }) {
  const { dq, dk, dv } = backward();
  const values = [problem.out, dq, dk, dv].map((tensor) => tensor.to({ dtype: 'float32' }).dataSync());
  fs.writeFileSync(file, Buffer.concat(values.map((array) => Buffer.from(array.buffer))));
  return {};
}

/** @param {TimeRequest} request */
async function time({ pass, threads, seconds }) {
  configure({ cpuThreads: threads });
  const call = pass === 'forward' ? forward : backward;
  const times = [];
  const end = performance.now() + 1000 * seconds;
  for (let i = 0; performance.now() < end || times.length < 2; ++i) {
    const start = performance.now();
    const results = Object.values(call());
    await Stream.current().synchronize();
    if (i > 0) times.push(performance.now() - start);
    for (const tensor of results) tensor.dispose();
  }
  return { ms: times };
}

/** @type {Record<string, (request: any) => object | Promise<object>>} */
const commands = { load, check, time, info: () => systemInfo() };

async function serve() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { command, ...request } = /** @type {{ command: string }} */ (JSON.parse(line));
    process.stdout.write(`${JSON.stringify(await commands[command](request))}\n`);
  }
}

void serve();
