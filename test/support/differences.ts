import type { Float64Tensor } from '../../lib/reference/float64';
import { maxAbs } from './compare';

const STEP = 1e-5;
const MOST_ELEMENTS = 48;

/**
 * Elements of a gradient and differences of a float64 `loss` that reads `input` anew at each call. Four points, whose error
 * falls with the fourth power of the step. Every element of a small input, evenly spread ones of a larger one.
 */
export function sampledDifferences(loss: () => number, input: Float64Tensor, gradient: Float64Tensor, step = STEP) {
  const size = input.data.length;
  const stride = Math.max(1, size / MOST_ELEMENTS);
  const places = Array.from({ length: Math.min(size, MOST_ELEMENTS) }, (_, n) => Math.floor(n * stride));
  const differences = places.map((at) => derivative(loss, input.data, at, step));
  return { places, gradients: places.map((at) => gradient.data[at]), differences };
}

/**
 * Compares a gradient with differences and says what is wrong. `tolerance` is relative to the largest of the gradient, the
 * differences and 1.
 */
export function differenceFailures(
  name: string,
  loss: () => number,
  input: Float64Tensor,
  gradient: Float64Tensor,
  tolerance: number,
  step = STEP,
): string[] {
  if (String(gradient.shape) !== String(input.shape)) return [`${name} has shape [${gradient.shape.join(', ')}]`];
  const { places, gradients, differences } = sampledDifferences(loss, input, gradient, step);
  const allowed = tolerance * Math.max(1, maxAbs(gradient.data), maxAbs(differences));
  return places.flatMap((at, n) => {
    const [got, wanted] = [gradients[n], differences[n]];
    if (Math.abs(got - wanted) <= allowed) return []; // false for NaN
    return [
      `${name}: element ${at} of [${input.shape.join(', ')}] is ${got}, central differences give ${wanted}; ` +
        `error ${Math.abs(got - wanted).toExponential(2)}, allowed ${allowed.toExponential(2)}`,
    ];
  });
}

function derivative(loss: () => number, data: Float64Array, at: number, step: number): number {
  const value = data[at];
  const lossAt = (offset: number): number => {
    data[at] = value + offset;
    return loss();
  };
  const near = lossAt(step) - lossAt(-step);
  const far = lossAt(2 * step) - lossAt(-2 * step);
  data[at] = value;
  return (8 * near - far) / (12 * step);
}
