'use strict';
// Compares dq, dk and dv of the installed package with central differences of the plain formula in float64.
const { Tensor, attentionForward, attentionBackward } = require('warpgrad');

const [tokens, dim, step] = [7, 4, 1e-5];
const shape = [1, tokens, 1, dim];
const draw = (seed) => Float32Array.from({ length: tokens * dim }, (_, i) => Math.sin(seed + 1.7 * i));
const inputs = [draw(1), draw(2), draw(3)];
const dOut = draw(4);

function loss([q, k, v]) {
  let total = 0;
  for (let i = 0; i < tokens; i++) {
    const weights = [];
    for (let j = 0; j <= i; j++) {
      let score = 0;
      for (let d = 0; d < dim; d++) score += q[i * dim + d] * k[j * dim + d];
      weights.push(Math.exp(score / Math.sqrt(dim)));
    }
    const sum = weights.reduce((a, b) => a + b);
    for (let d = 0; d < dim; d++) {
      const out = weights.reduce((acc, weight, j) => acc + (weight / sum) * v[j * dim + d], 0);
      total += out * dOut[i * dim + d];
    }
  }
  return total;
}

function centralDifference(operand, element) {
  const at = (offset) => {
    const moved = inputs.map((values) => Float64Array.from(values));
    moved[operand][element] += offset;
    return loss(moved);
  };
  return (at(step) - at(-step)) / (2 * step);
}

const [q, k, v] = inputs.map((values) => Tensor.from(values, shape));
const { out, lse } = attentionForward(q, k, v, { causal: true });
const { dq, dk, dv } = attentionBackward(Tensor.from(dOut, shape), q, k, v, out, lse, { causal: true });
let worst = 0;
[dq, dk, dv].forEach((gradient, operand) => {
  gradient.dataSync().forEach((value, element) => {
    worst = Math.max(worst, Math.abs(value - centralDifference(operand, element)));
  });
});
console.log(JSON.stringify({ worst }));
