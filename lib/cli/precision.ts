import { Tensor, type Device, type DType } from '../index';
import { type Float64Tensor } from '../reference/float64';
import { type Random } from './random';

// How far a result may be from the float64 reference: a few times what the precision itself costs.
//
// The inputs are rounded to the dtype first, and reference and operation get the same rounded values, so that nothing is
// forgiven for that. Then the cost of the precision is measured instead of guessed: every input is moved by a random
// part of half a unit in its last place, as one more rounding could, and the reference tells how far each result moves
// (the most of a few draws). An operation that rounds its intermediate values about as often as its operands stays within
// a small multiple of this; a wrong formula, a lost term or a key too many is orders of magnitude away. In results that
// are differences of large terms, such as the gradient of a decay, the cost is larger by itself, and so is what is allowed.

export type FloatDType = Exclude<DType, 'int32'>;
export type Tensors = Readonly<Record<string, Float64Tensor>>;

/** Half a unit in the last place, relative. */
const ROUNDOFF: Readonly<Record<FloatDType, number>> = { float32: 2 ** -24, float16: 2 ** -11, bfloat16: 2 ** -8 };

/** Times the cost of the precision. Float32 sums run over more terms, in other orders, than the perturbation models. */
const ALLOWED: Readonly<Record<FloatDType, number>> = { float32: 10, float16: 1.5, bfloat16: 1.5 };

const DRAWS = 2;

/** One result of one case. */
export interface Verdict {
  readonly what: string;
  /** max |error| */
  readonly error: number;
  readonly allowed: number;
  readonly ok: boolean;
}

/** What an operation computes in: KDA on a GPU rounds float16 operands to bfloat16. */
export function arithmeticOf(operation: 'attention' | 'kda', dtype: FloatDType, device: Device): FloatDType {
  return operation === 'kda' && device !== 'cpu' ? 'bfloat16' : dtype;
}

/** A tensor of the device with these values, rounded to the dtype. */
export function upload({ data, shape }: Float64Tensor, dtype: FloatDType, device: Device): Tensor {
  return Tensor.from(Float32Array.from(data), shape, { dtype, device });
}

/** The values of a tensor. */
export async function download(tensor: Tensor): Promise<Float64Tensor> {
  using converted = tensor.to({ dtype: 'float32' });
  return { shape: tensor.shape, data: Float64Array.from(await converted.data()) };
}

/** The largest difference; equal infinities do not differ, a NaN or a shape differs infinitely. */
export function maxDifference(actual: Float64Tensor, expected: Float64Tensor): number {
  if (String(actual.shape) !== String(expected.shape)) return Infinity;
  return expected.data.reduce((largest, value, i) => {
    const difference = actual.data[i] === value ? 0 : Math.abs(actual.data[i] - value);
    return Math.max(largest, Number.isNaN(difference) ? Infinity : difference);
  }, 0);
}

function perturb(inputs: Tensors, roundoff: number, random: Random): Tensors {
  const move = (value: number) => value * (1 + roundoff * (2 * random.uniform() - 1));
  return Object.fromEntries(
    Object.entries(inputs).map(([name, { shape, data }]) => [name, { shape, data: data.map(move) }]),
  );
}

/** The right results of an operation, as functions of its inputs. */
export interface Reference {
  results(inputs: Tensors): Tensors;
  /** For results that are small differences of terms summed in float32, the size of those terms. */
  termSizes?(inputs: Tensors): Readonly<Record<string, number>>;
}

/** Judges the results of an operation on `inputs`, which computes in `dtype`, against a float64 reference. */
export function judge(
  actual: Tensors,
  inputs: Tensors,
  reference: Reference,
  dtype: FloatDType,
  random: Random,
): Verdict[] {
  const sizes = reference.termSizes?.(inputs) ?? {};
  const expected = reference.results(inputs);
  const moved = Array.from({ length: DRAWS }, () => reference.results(perturb(inputs, ROUNDOFF[dtype], random)));
  return Object.entries(expected).map(([what, values]) => {
    const finite = values.data.filter(Number.isFinite);
    const stored = ROUNDOFF[dtype] * finite.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    const summed = ROUNDOFF.float32 * (sizes[what] ?? 0);
    const cost = stored + summed + Math.max(...moved.map((result) => maxDifference(result[what], values)));
    const allowed = ALLOWED[dtype] * cost;
    const error = what in actual ? maxDifference(actual[what], values) : Infinity;
    return { what, error, allowed, ok: error <= allowed };
  });
}
