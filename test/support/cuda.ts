import { systemInfo, Tensor, type Device } from '../../lib';
import { difference } from './compare';
import type { Operand } from './dtypes';
import { Random } from './random';

const { devices, reason } = systemInfo().cuda;
const gpu = devices.find(({ usable }) => usable);

/** The first usable GPU. */
export const CUDA: Device = `cuda:${gpu?.index ?? 0}`;

/** `describe` with the GPU's name, or skipped with the reason why there is none. */
export function describeCuda(title: string, body: () => void): void {
  if (gpu) describe(`${title} (${gpu.name})`, body);
  else describe.skip(`${title} (skipped, no usable GPU: ${reason})`, body);
}

/** The same values on the GPU in 16 bits, and on the CPU in float32. */
export interface Twin {
  readonly gpu: Tensor;
  readonly cpu: Tensor;
}

/** Draws normal numbers for large operands: slices of a pool, which costs nothing a number. */
export class Pool {
  readonly #numbers: Float32Array;
  #at = 0;

  constructor(label: string, size = 2 ** 21) {
    const random = new Random(label);
    this.#numbers = Float32Array.from({ length: size }, () => random.normal());
  }

  twin(shape: readonly number[], dtype: Exclude<Operand, 'float32'>): Twin {
    const size = shape.reduce((product, extent) => product * extent, 1);
    const values = new Float32Array(size);
    for (let at = 0; at < size;) {
      const part = this.#numbers.subarray(this.#at, this.#at + size - at);
      values.set(part, at);
      at += part.length;
      this.#at = (this.#at + part.length) % this.#numbers.length;
    }
    using rounded = Tensor.from(values, shape, { dtype });
    return { gpu: rounded.to({ device: CUDA }), cpu: rounded.to({ dtype: 'float32' }) };
  }
}

/** The values of a tensor, converted on its device. */
export async function valuesOf(tensor: Tensor): Promise<Float32Array> {
  using converted = tensor.to({ dtype: 'float32' });
  return (await converted.data()) as Float32Array;
}

/** How far results of 16-bit operands are from float32 ones, with the bound of test/support/tolerance.ts for each. */
export async function differenceOf(actual: Tensor, expected: Tensor): Promise<ReturnType<typeof difference>> {
  return difference(await valuesOf(actual), await valuesOf(expected));
}
