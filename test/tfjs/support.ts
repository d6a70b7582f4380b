import * as tf from '@tensorflow/tfjs';
import { expectClose } from '../support/compare';
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

/**
 * Compares two functions of the same inputs: their results, and the gradients of one random linear combination of their
 * results for every input. Both are float32, so the bound is for rounding alone.
 */
export function expectSameWithGradients(
  label: string,
  inputs: Named,
  actual: Outputs,
  expected: Outputs,
  rmsRatio: number,
): void {
  tf.tidy(() => {
    const names = Object.keys(inputs);
    const expectedOutputs = expected(inputs);
    actual(inputs).forEach((output, n) => {
      expectClose(`${label}: result ${n}`, fromTfjs(output), fromTfjs(expectedOutputs[n]), { rmsRatio });
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
    const expectedGradients = gradients(expected);
    gradients(actual).forEach((gradient, n) => {
      expectClose(`${label}: d${names[n]}`, fromTfjs(gradient), fromTfjs(expectedGradients[n]), { rmsRatio });
    });
  });
}
