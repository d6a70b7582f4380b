import * as tf from '@tensorflow/tfjs';
import { expectClose, maxAbs } from '../support/compare';
import { Random } from '../support/random';
import type { Float64Tensor } from '../../lib/reference/float64';

// Keeps TensorFlow.js from advertising another backend. Without others the cpu backend is the one used.
tf.enableProdMode();

export function randomTensor(random: Random, shape: number[], draw?: () => number): tf.Tensor {
  return tf.tensor(Float32Array.from(random.tensor(shape, draw).data), shape);
}

export function fromTfjs(tensor: tf.Tensor): Float64Tensor {
  return { shape: tensor.shape, data: Float64Array.from(tensor.dataSync()) };
}

export type Named = Record<string, tf.Tensor>;
export type Outputs = (inputs: Named) => tf.Tensor[];

/** The largest "natural" size (test/golden/FORMAT.md) of the gradients that are sums of terms which may cancel, by input. */
export type Naturals = (inputs: Record<string, Float64Tensor>, weights: Float64Tensor[]) => Record<string, number>;

/**
 * Compares two functions of the same inputs: their results, and the gradients of one random linear combination of their
 * results for every input. What they may differ by is for rounding alone: of float32, FORMAT.md's 4e-6 unless told.
 */
export function expectSameWithGradients(
  label: string,
  inputs: Named,
  actual: Outputs,
  expected: Outputs,
  { rounding = 4e-6, naturals = () => ({}) }: { rounding?: number; naturals?: Naturals } = {},
): void {
  tf.tidy(() => {
    const names = Object.keys(inputs);
    const expectedOutputs = expected(inputs);
    actual(inputs).forEach((output, n) => {
      expectClose(`${label}: result ${n}`, fromTfjs(output), fromTfjs(expectedOutputs[n]), { rmsRatio: rounding });
    });
    const random = new Random(label);
    const weights = expectedOutputs.map(({ shape }) => randomTensor(random, shape));
    const gradients = (outputs: Outputs) => {
      const loss = (...values: tf.Tensor[]) => {
        const named = Object.fromEntries(names.map((name, n) => [name, values[n]]));
        return tf.addN(outputs(named).map((output, n) => tf.sum(tf.mul(output, weights[n]))));
      };
      return tf.grads(loss)(Object.values(inputs));
    };
    const expectedGradients = gradients(expected).map(fromTfjs);
    const inputs64 = Object.fromEntries(names.map((name) => [name, fromTfjs(inputs[name])]));
    const natural = naturals(inputs64, weights.map(fromTfjs));
    gradients(actual).forEach((gradient, n) => {
      const [name, reference] = [names[n], expectedGradients[n]];
      const terms = name in natural ? natural[name] / maxAbs(reference.data) : 0;
      expectClose(`${label}: d${name}`, fromTfjs(gradient), reference, { rmsRatio: rounding * (1 + terms) });
    });
  });
}
