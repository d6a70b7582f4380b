import type { Float64Tensor } from '../../lib/reference/float64';
import { maxAbs } from './compare';

const STEP = 1e-4;
const MOST_ELEMENTS = 48;

/**
 * Compares a gradient with differences of a float64 `loss` that reads `input` anew at each call. Four points, whose
 * error falls with the fourth power of the step. Checks every element of a small input, evenly spread ones of a larger
 * one. `tolerance` is relative to the largest of the gradient, the differences and 1.
 */
export function expectGradientByDifferences(
  name: string,
  loss: () => number,
  input: Float64Tensor,
  gradient: Float64Tensor,
  tolerance: number,
): void {
  const size = input.data.length;
  expect(gradient.shape).toEqual(input.shape);
  const stride = Math.max(1, size / MOST_ELEMENTS);
  const checked = Array.from({ length: Math.min(size, MOST_ELEMENTS) }, (_, n) => Math.floor(n * stride));
  const expected = checked.map((at) => derivative(loss, input.data, at));
  const scale = Math.max(1, maxAbs(gradient.data), maxAbs(expected));
  checked.forEach((at, n) => {
    const error = Math.abs(gradient.data[at]! - expected[n]!);
    if (error <= tolerance * scale) return; // also false for NaN
    throw new Error(
      `${name}: element ${at} of [${input.shape.join(', ')}] is ${gradient.data[at]}, central differences give ` +
        `${expected[n]}; error ${error.toExponential(2)}, allowed ${(tolerance * scale).toExponential(2)}`,
    );
  });
}

function derivative(loss: () => number, data: Float64Array, at: number): number {
  const value = data[at]!;
  const lossAt = (offset: number): number => {
    data[at] = value + offset;
    return loss();
  };
  const near = lossAt(STEP) - lossAt(-STEP);
  const far = lossAt(2 * STEP) - lossAt(-2 * STEP);
  data[at] = value;
  return (8 * near - far) / (12 * STEP);
}
