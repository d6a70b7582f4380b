import { attentionForward, Stream, systemInfo, Tensor, type Device } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import type { Operand } from './dtypes';
import { Random } from './random';

const { devices, reason } = systemInfo().cuda;
const gpu = devices.find(({ usable }) => usable);

/** Runs the tests of the GPU on another device, to try them where there is none: WARPGRAD_TEST_DEVICE=cpu. */
const substitute = process.env.WARPGRAD_TEST_DEVICE as Device | undefined;

/** The first usable GPU. */
export const CUDA: Device = substitute ?? `cuda:${gpu?.index ?? 0}`;

/** `describe` with the GPU's name, or skipped with the reason why there is none. */
export function describeCuda(title: string, body: () => void): void {
  if (substitute) describe(`${title} (on ${substitute})`, body);
  else if (gpu) describe(`${title} (${gpu.name})`, body);
  else describe.skip(`${title} (skipped, no usable GPU: ${reason})`, body);
}

/** The same values on the GPU in a dtype, and on the CPU in float32. */
export interface Twin {
  readonly gpu: Tensor;
  readonly cpu: Tensor;
}

const POOL_SIZE = 2 ** 20 + 7;

/** Draws normal numbers for large operands: slices of a pool, which costs nothing a number. */
export class Pool {
  readonly #label: string;
  readonly #seed: number | undefined;
  #numbers = new Float32Array();
  #at = 0;

  /** @param seed Default: that of the run. */
  constructor(label: string, seed?: number) {
    this.#label = label;
    this.#seed = seed;
  }

  twin(shape: readonly number[], dtype: Operand, map?: (value: number) => number): Twin {
    const size = shape.reduce((product, extent) => product * extent, 1);
    const values = new Float32Array(size);
    if (this.#numbers.length === 0) this.#draw();
    for (let at = 0; at < size;) {
      const part = this.#numbers.subarray(this.#at, this.#at + size - at);
      values.set(part, at);
      at += part.length;
      this.#at = (this.#at + part.length) % this.#numbers.length;
    }
    if (map) values.forEach((value, at) => (values[at] = map(value)));
    using rounded = Tensor.from(values, shape, { dtype });
    return { gpu: rounded.to({ device: CUDA }), cpu: rounded.to({ dtype: 'float32' }) };
  }

  /** Not before a test asks: where there is no GPU, none does. */
  #draw(): void {
    const random = new Random(this.#label, this.#seed);
    this.#numbers = new Float32Array(POOL_SIZE);
    for (let at = 0; at < POOL_SIZE; at++) this.#numbers[at] = random.normal();
  }
}

/** The values of a tensor, converted on its device: for large ones, where the conversions are not what is tested. */
export async function valuesOf(tensor: Tensor): Promise<Float64Tensor> {
  using converted = tensor.to({ dtype: 'float32' });
  return { shape: tensor.shape, data: new Float64Array(await converted.data()) };
}

/** The values of all results, which are disposed of. */
export async function readValues<Name extends string>(
  tensors: Partial<Record<Name, Tensor>>,
): Promise<Record<Name, Float64Tensor>> {
  const results = {} as Record<Name, Float64Tensor>;
  for (const [name, tensor] of Object.entries(tensors) as [Name, Tensor][]) {
    results[name] = await valuesOf(tensor);
    tensor.dispose();
  }
  return results;
}

/** Enqueues some milliseconds of work. */
export function keepBusy(stream: Stream, operand: Tensor): void {
  for (let n = 0; n < 20; n++) {
    const { out, lse } = attentionForward(operand, operand, operand, { stream });
    out.dispose();
    lse.dispose();
  }
}

/** Free bytes of the GPU. What is kept for reuse counts: the first refusal has the stream give it back. */
export function freeBytes(): number {
  bytesFreeAtRefusal();
  Stream.current(CUDA).synchronizeSync();
  return bytesFreeAtRefusal();
}

/** From what a request for far too much answers. */
function bytesFreeAtRefusal(): number {
  try {
    Tensor.empty([2 ** 39], { device: CUDA });
  } catch (error) {
    return Number(/(\d+) of \d+ bytes are free/.exec((error as Error).message)![1]);
  }
  throw new Error('far too much memory was there');
}
