'use strict';
// Runs attention on request, for a driver in another language that measures peers beside it: one JSON object a line in, one
// out. `load` reads q, k, v and dOut, float32 one after the other, from a file; `check` writes out, dq, dk and dv likewise;
// `time` gives the median milliseconds of calls for about `seconds`.
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const { attentionBackward, attentionForward, configure, Stream, systemInfo, Tensor } = require(
  path.resolve(__dirname, '../../dist/index.js'),
);

let problem;

function load({ file, shape, dtype, causal }) {
  const bytes = fs.readFileSync(file);
  const size = shape.reduce((product, dim) => product * dim, 1);
  const [q, k, v, dOut] = [0, 1, 2, 3].map((i) =>
    Tensor.from(new Float32Array(bytes.buffer, bytes.byteOffset + i * size * 4, size), shape, { dtype }),
  );
  problem = { q, k, v, dOut, options: { causal } };
  Object.assign(problem, attentionForward(q, k, v, problem.options));
  return {};
}

function forward() {
  return attentionForward(problem.q, problem.k, problem.v, problem.options);
}

function backward() {
  const { dOut, q, k, v, out, lse, options } = problem;
  return attentionBackward(dOut, q, k, v, out, lse, options);
}

async function check({ file }) {
  const { dq, dk, dv } = backward();
  const values = [problem.out, dq, dk, dv].map((tensor) => tensor.to({ dtype: 'float32' }).dataSync());
  fs.writeFileSync(file, Buffer.concat(values.map((array) => Buffer.from(array.buffer))));
  return {};
}

async function time({ pass, threads, seconds }) {
  configure({ cpuThreads: threads });
  const call = pass === 'forward' ? forward : backward;
  const times = [];
  const end = performance.now() + 1000 * seconds;
  for (let i = 0; performance.now() < end || times.length < 3; ++i) {
    const start = performance.now();
    const results = Object.values(call());
    await Stream.current().synchronize();
    if (i > 0) times.push(performance.now() - start);
    for (const tensor of results) tensor.dispose();
  }
  return { ms: times.sort((a, b) => a - b)[Math.floor(times.length / 2)] };
}

const commands = { load, check, time, info: () => systemInfo() };

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { command, ...request } = JSON.parse(line);
    process.stdout.write(`${JSON.stringify(await commands[command](request))}\n`);
  }
})();
