import { kdaForward, type Tensor } from '../../lib';
import { CUDA, describeCuda, Pool } from '../support/cuda';
import { difference } from '../support/compare';
import { sampledDifferences } from '../support/differences';
import { decode16 } from '../support/dtypes';
import { fullKdaCase, kdaInputTensors, withTokens, type KdaCase } from '../support/kdaCases';
import { compareKdaTwins, disposeKdaTwins, drawKdaTwins } from '../support/kdaTwins';
import { Random } from '../support/random';
import { kdaOptions, runKda, toTensor, type KdaResults } from '../support/run';

type Errors = Readonly<Record<keyof KdaResults, number>>;

// Expected values: the CPU backend in float32 on the same bfloat16 operands, itself within 1e-5 of float64. No result may be
// further off than flash-linear-attention's on these very inputs, nor than 1e-2. dbeta is judged by what the kernels were
// designed for: stored in bfloat16, it has most of its error in a few elements, the last tokens', and the peer's saturated one
// is less (2.65e-3; 3.3e-3 here).
const LARGEST = 1e-2;
const DBETA = 5.2e-3;
// The gate's input is shifted: from a decay that is next to nothing to one that is its bound, -5. The peer's errors, against
// float64: scripts/bench/gpu/peers/kda_errors.py, flash-linear-attention 0.5.2 on an H200.
const SEED = 1;
const CASES: readonly { title: string; shift: number; peer: Errors }[] = [
  {
    ...{ title: 'weak', shift: -4 },
    peer: {
      ...{ out: 0.00402, finalState: 0.00282, dq: 0.00328, dk: 0.00455, dv: 0.00396, dg: 0.00509 },
      ...{ dbeta: 0.00414, dInitialState: 0.00271, dALog: 0.00218, dDtBias: 0.00423 },
    },
  },
  {
    ...{ title: 'random', shift: 0 },
    peer: {
      ...{ out: 0.00406, finalState: 0.00289, dq: 0.00333, dk: 0.00336, dv: 0.00333, dg: 0.0045 },
      ...{ dbeta: 0.00493, dInitialState: 0.00213, dALog: 0.00462, dDtBias: 0.0112 },
    },
  },
  {
    ...{ title: 'saturated', shift: 4 },
    peer: {
      ...{ out: 0.00376, finalState: 0.00255, dq: 0.00301, dk: 0.00299, dv: 0.0034, dg: 0.0138 },
      ...{ dbeta: 0.00265, dInitialState: 0.00239, dALog: 0.372, dDtBias: 0.0768 },
    },
  },
];

describeCuda('accuracy of KDA', () => {
  const layer = 'relative errors of a layer, B 1, T 1024, H 8, D 128, bfloat16';
  test.each(CASES)(`${layer}, $title decay`, async ({ title, shift, peer }) => {
    const pool = new Pool(`accuracy of KDA, ${title} decay`, SEED);
    const twins = drawKdaTwins(pool, { T: 1024, heads: [8, 8], dims: [128, 128], gateDtype: 'bfloat16' });
    const { g, ...others } = twins.tensors;
    const shifted = pool.twin(g.cpu.shape, 'bfloat16', (value) => value + shift);
    const { gpu, cpu } = await compareKdaTwins({ ...twins, tensors: { ...others, g: shifted } });
    [g.gpu, g.cpu, shifted.gpu, shifted.cpu].forEach((tensor) => tensor.dispose());
    disposeKdaTwins({ ...twins, tensors: others });
    const errors = (Object.keys(peer) as (keyof KdaResults)[]).map((name) => {
      const error = difference(gpu[name].data, cpu[name].data).rmsRatio;
      const bound = name === 'dbeta' ? DBETA : Math.min(peer[name], LARGEST);
      return { name, error, bound, ok: error <= bound };
    });
    expect(errors.filter(({ ok }) => !ok)).toEqual([]);
  });
});

// Expected values: central differences of the GPU's own forward, with a step of 1/4, which all operands take exactly. An
// output is off by about 3e-3 of its value, so a loss by at most 3e-3 of the root of the sum of its squared terms; the four
// losses of a difference, weighted 8 and 1 over 12 steps, make DEVIATION of it. That is too much to judge single elements,
// so all of a gradient are judged together: the factor that brings them closest to the differences is 1 but for four
// standard errors, as what is left then tells, and what is left is no more than the deviation.
const STEP = 1 / 4;
const DEVIATION = 3e-3 * (Math.sqrt(2 * 8 ** 2 + 2) / (12 * STEP));
/** Of fewer elements what is left says too little. */
const FEW = 8;
/** Of a gradient: what the fourth power of the step leaves, with room. */
const CURVATURE = 0.02;

/** out and the final state of a case. */
function forward({ inputs, options }: KdaCase): Record<'out' | 'finalState', ArrayLike<number>> {
  const { q, k, v, g, beta } = inputs;
  const operands = [q, k, v].map((tensor) => toTensor(tensor, 'bfloat16', CUDA)) as [Tensor, Tensor, Tensor];
  const gates = [g, beta].map((tensor) => toTensor(tensor, 'float32', CUDA)) as [Tensor, Tensor];
  const { out, finalState } = kdaForward(...operands, ...gates, {
    ...kdaOptions(options, CUDA),
    outputFinalState: true,
  });
  return {
    out: Float64Array.from(out.dataSync(), (bits) => decode16(bits, 'bfloat16')),
    finalState: finalState.dataSync(),
  };
}

describeCuda('KDA gradients against central differences of the forward', () => {
  const random = new Random('GPU differences of KDA');
  const round = (value: number) => Math.round(value * 32) / 32;

  test.each(Array.from({ length: 6 }, (_, n) => n))('case %i', async (n) => {
    const packed = n % 2 === 1;
    const drawn = fullKdaCase(random, { T: 5, heads: [1, 2], dims: [16, 16] }, packed ? [0, 2, 2, 5] : undefined);
    // A slope near 1, so that a step stays where the gate is smooth.
    const aLog = random.tensor([2], () => random.between(-0.3, 0.3));
    const gate = { ...drawn.options.gate, aLog, ...(n < 4 ? {} : { lowerBound: -5 }) };
    const options = { ...drawn.options, gate };
    const item = withTokens({ ...drawn, options }, ({ shape, data }) => ({ shape, data: data.map(round) }));
    const terms = () => {
      const { out, finalState } = forward(item);
      const ofOut = Array.from(item.dOut.data, (weight, at) => weight * out[at]);
      return ofOut.concat(Array.from(item.dFinalState!.data, (weight, at) => weight * finalState[at]));
    };
    const loss = () => terms().reduce((sum, term) => sum + term, 0);
    const deviation = DEVIATION * Math.hypot(...terms());
    const results = await runKda(item, { dtype: 'bfloat16', device: CUDA });
    const failures = kdaInputTensors(item).flatMap(([input, name]) => {
      const { gradients, differences } = sampledDifferences(loss, input, results[name], STEP);
      const squares = gradients.reduce((sum, x) => sum + x * x, 0);
      const factor = gradients.reduce((sum, x, n) => sum + x * differences[n], 0) / squares;
      const left = Math.hypot(...gradients.map((x, n) => differences[n] - factor * x)) / Math.sqrt(gradients.length);
      const error = gradients.length < FEW ? deviation : left;
      const allowed = 4 * (error / Math.sqrt(squares)) + CURVATURE;
      if (Math.abs(factor - 1) <= allowed && left <= deviation) return []; // false for NaN
      return [`${name}: differences are ${factor} of it, allowed 1 ± ${allowed}; left ${left}, allowed ${deviation}`];
    });
    expect(failures).toEqual([]);
  });
});
