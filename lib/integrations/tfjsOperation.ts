/** What every operation of the TensorFlow.js adapter shares: the copies in and out, the tape, and the lifetime of what is kept. */
import type * as tfjs from '@tensorflow/tfjs-core';
import { resolveDevice } from '../device';
import type { DeviceOption } from '../device';
import { WarpgradError, WarpgradTypeError } from '../errors';
import { isTensor, Tensor } from '../tensor';
import { describe } from '../validate';

const OPERATION_DTYPES = ['float32', 'float16', 'bfloat16'] as const;
export type OperationDType = (typeof OPERATION_DTYPES)[number];

/** Tensors by the name of the argument. */
export type Inputs<T> = Readonly<Record<string, T>>;

/** One run of an operation, with what its backward pass needs. */
export interface Recorded {
  readonly outputs: readonly Tensor[];
  /** Everything to dispose of when the backward pass is over or can't come any more. */
  readonly held: readonly { dispose(): void }[];
  /** From the gradients of the outputs to those of the inputs, under the same names. */
  backward(dOutputs: readonly Tensor[]): Inputs<Tensor>;
}

interface Placement {
  device?: DeviceOption | undefined;
  dtype?: OperationDType | undefined;
}

/** Operands that take the operation's dtype; gates, states and per-head parameters stay float32. */
const IN_OPERATION_DTYPE = new Set(['q', 'k', 'v']);

const tf = loadTfjs();

/**
 * Runs an operation as one node of the tape. TensorFlow.js lets such a node have one result, so several are laid end to end
 * in it and cut apart by tape operations outside.
 */
export function differentiable(
  name: string,
  inputs: Inputs<tfjs.Tensor>,
  placement: Placement,
  record: (tensors: Inputs<Tensor>) => Recorded,
): tfjs.Tensor[] {
  for (const [key, input] of Object.entries(inputs)) checkInput(name, key, input);
  const { device: deviceOption = 'auto' } = placement;
  const device = resolveDevice(name, deviceOption);
  const { dtype = device === 'cpu' ? 'float32' : 'bfloat16' } = placement;
  if (!OPERATION_DTYPES.includes(dtype)) {
    throw new WarpgradTypeError(`${name}: dtype must be one of ${OPERATION_DTYPES.join(', ')}, got ${describe(dtype)}`);
  }
  const dtypeOf = (key: string) => (IN_OPERATION_DTYPE.has(key) ? dtype : 'float32');
  const isRecording = tf.engine().isTapeOn();
  releaseAbandoned();

  let shapes: (readonly number[])[] = [];
  const run = tf.customGrad(() => {
    const recorded = recordUploaded(inputs, record, (key, input) =>
      Tensor.from(input.dataSync<'float32'>(), input.shape, { dtype: dtypeOf(key), device }),
    );
    const release = () => recorded.held.forEach((item) => item.dispose());
    try {
      shapes = recorded.outputs.map((output) => output.shape);
      const value = download(recorded.outputs);
      if (isRecording) keepUntilBackward(release);
      else release();
      return { value, gradFunc: (dy: tfjs.Tensor) => backward(name, inputs, recorded, dy, release) };
    } catch (error) {
      release();
      throw error;
    }
  });
  const value = run(...Object.values(inputs));
  return shapes.length === 1 ? [value] : cutApart(value, shapes);
}

function recordUploaded(
  inputs: Inputs<tfjs.Tensor>,
  record: (tensors: Inputs<Tensor>) => Recorded,
  upload: (key: string, input: tfjs.Tensor) => Tensor,
): Recorded {
  const uploaded: Record<string, Tensor> = {};
  try {
    for (const [key, input] of Object.entries(inputs)) uploaded[key] = upload(key, input);
    return record(uploaded);
  } catch (error) {
    Object.values(uploaded).forEach((tensor) => tensor.dispose());
    throw error;
  }
}

function backward(
  name: string,
  inputs: Inputs<tfjs.Tensor>,
  recorded: Recorded,
  dy: tfjs.Tensor,
  release: () => void,
): tfjs.Tensor[] {
  if (tf.engine().state.gradientDepth > 0) {
    throw new WarpgradError('ERR_WARPGRAD_UNSUPPORTED', `${name}: gradients of gradients are not supported`);
  }
  const data = dy.dataSync<'float32'>();
  const temporaries: Tensor[] = [];
  try {
    let offset = 0;
    for (const { shape, size, dtype, device } of recorded.outputs) {
      temporaries.push(Tensor.from(data.subarray(offset, offset + size), shape, { dtype, device }));
      offset += size;
    }
    const grads = recorded.backward(temporaries);
    temporaries.push(...Object.values(grads));
    return Object.entries(inputs).map(([key, input]) => tf.tensor(readFloat32(grads[key]), input.shape));
  } finally {
    temporaries.forEach((tensor) => tensor.dispose());
    abandoned.delete(release);
    release();
  }
}

/** The releases of runs whose backward pass may still come, each with the tape that it is on. */
const abandoned = new Map<() => void, unknown>();

function keepUntilBackward(release: () => void): void {
  abandoned.set(release, tf.engine().state.activeTape);
}

/**
 * Releases what runs on earlier tapes kept. TensorFlow.js does not say when a tape ends, and never calls the gradient of a
 * node that the result does not depend on; a new tape shows that the one before is over.
 */
function releaseAbandoned(): void {
  const { activeTape } = tf.engine().state;
  for (const [release, tape] of abandoned) {
    if (tape === activeTape) continue;
    abandoned.delete(release);
    release();
  }
}

function download(outputs: readonly Tensor[]): tfjs.Tensor {
  if (outputs.length === 1) return tf.tensor(readFloat32(outputs[0]), [...outputs[0].shape]);
  const packed = new Float32Array(outputs.reduce((sum, { size }) => sum + size, 0));
  let offset = 0;
  for (const output of outputs) {
    packed.set(readFloat32(output), offset);
    offset += output.size;
  }
  return tf.tensor1d(packed);
}

function cutApart(packed: tfjs.Tensor, shapes: readonly (readonly number[])[]): tfjs.Tensor[] {
  return tf.tidy(() => {
    let offset = 0;
    return shapes.map((shape) => {
      const size = shape.reduce((product, extent) => product * extent, 1);
      const piece = tf.slice(packed, [offset], [size]);
      offset += size;
      return tf.reshape(piece, [...shape]);
    });
  });
}

function readFloat32(tensor: Tensor): Float32Array {
  if (tensor.dtype === 'float32') return tensor.dataSync() as Float32Array;
  const wide = tensor.to({ dtype: 'float32' });
  try {
    return wide.dataSync() as Float32Array;
  } finally {
    wide.dispose();
  }
}

function checkInput(name: string, key: string, input: unknown): void {
  if (!(input instanceof tf.Tensor)) {
    throw new WarpgradTypeError(
      `${name}: ${key} must be a tensor of TensorFlow.js, got ${isTensor(input) ? 'one of warpgrad' : describe(input)}`,
    );
  }
  if (input.dtype !== 'float32') {
    throw new WarpgradTypeError(`${name}: ${key} must be a float32 tensor, got ${input.dtype}`);
  }
}

/** Loaded here and not by an import, so that a missing peer dependency is named with its cure. */
function loadTfjs(): typeof tfjs {
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports -- what an import throws can't be caught
    return require('@tensorflow/tfjs-core') as typeof tfjs;
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== 'MODULE_NOT_FOUND') throw cause;
    const message =
      'warpgrad/tfjs needs the package @tensorflow/tfjs-core, which is not installed: npm install @tensorflow/tfjs';
    throw new WarpgradError('ERR_WARPGRAD_UNSUPPORTED', message, { cause });
  }
}
