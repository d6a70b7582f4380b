/** Checks of tensor arguments shared by the operations. Internal. */
import { types } from 'node:util';

import type { DType } from './dtype';
import { WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { resolveStream, type Stream } from './stream';
import { isTensor, nativeTensor, type Tensor } from './tensor';
import type { NativeTensor } from './native';
import { describe, isList, sameShape } from './validate';

const OPERAND_DTYPES: readonly DType[] = ['float32', 'float16', 'bfloat16'];

function expectLive(caller: string, name: string, value: unknown): Tensor {
  if (!isTensor(value)) {
    const got = describe(value);
    const which = got === 'Tensor' ? 'one of another library, or of another copy of this one' : got;
    throw new WarpgradTypeError(`${caller}: ${name} must be a Tensor, got ${which}`);
  }
  if (value.disposed) throw new WarpgradError('ERR_WARPGRAD_DISPOSED', `${caller}: ${name} was disposed`);
  return value;
}

/** Checks the tensors of one call and says in its errors which one is wrong. */
export class Operands {
  readonly #caller: string;
  readonly #first: Tensor;
  readonly #firstName: string;

  private constructor(caller: string, firstName: string, first: Tensor) {
    this.#caller = caller;
    this.#firstName = firstName;
    this.#first = first;
  }

  /** Checks the first operand, which decides the dtype and the device of the call. */
  static of(caller: string, firstName: string, value: unknown): Operands {
    const first = expectLive(caller, firstName, value);
    if (!OPERAND_DTYPES.includes(first.dtype)) {
      throw new WarpgradTypeError(`${caller}: ${firstName} must be float32, float16 or bfloat16, got ${first.dtype}`);
    }
    return new Operands(caller, firstName, first);
  }

  /** Like a first operand that was checked already; it may have been disposed of since. */
  static like(caller: string, firstName: string, first: Tensor): Operands {
    return new Operands(caller, firstName, first);
  }

  /** A live tensor on the first operand's device. */
  #tensor(name: string, value: unknown): Tensor {
    const tensor = expectLive(this.#caller, name, value);
    if (tensor.device !== this.#first.device) {
      throw new WarpgradRangeError(
        `${this.#caller}: ${name} must be on ${this.#first.device} like ${this.#firstName}, got ${tensor.device}`,
      );
    }
    return tensor;
  }

  /** A tensor of a given rank, for operands whose sizes the call takes its own from; `fitting` checks the others. */
  ranked(name: string, value: unknown, layout: string, rank: number): Tensor {
    const tensor = this.#tensor(name, value);
    if (tensor.shape.length !== rank) {
      throw new WarpgradRangeError(
        `${this.#caller}: ${name} must have ${rank} dimensions ${layout}, got shape [${tensor.shape.join(', ')}]`,
      );
    }
    return this.#dense(name, tensor);
  }

  /** Checks the shape and the dtype, by default the first operand's, of a tensor that is right otherwise. */
  fitting(name: string, tensor: Tensor, shape: readonly number[], dtypes?: readonly DType[]): void {
    if (!sameShape(tensor.shape, shape)) {
      throw new WarpgradRangeError(
        `${this.#caller}: ${name} must have shape [${shape.join(', ')}], got [${tensor.shape.join(', ')}]`,
      );
    }
    if (dtypes ? !dtypes.includes(tensor.dtype) : tensor.dtype !== this.#first.dtype) {
      const expected = dtypes?.join(' or ') ?? this.#first.dtype;
      throw new WarpgradTypeError(`${this.#caller}: ${name} must be ${expected}, got ${tensor.dtype}`);
    }
  }

  /** A tensor of a given shape and one of the given dtypes; default: the first operand's. */
  shaped(name: string, value: unknown, shape: readonly number[], dtypes?: readonly DType[]): Tensor {
    const tensor = this.#tensor(name, value);
    this.fitting(name, tensor, shape, dtypes);
    return this.#dense(name, tensor);
  }

  /** Like `shaped`, and without gaps. */
  contiguous(name: string, value: unknown, shape: readonly number[], dtypes?: readonly DType[]): Tensor {
    const tensor = this.shaped(name, value, shape, dtypes);
    if (!tensor.isContiguous) {
      throw new WarpgradRangeError(`${this.#caller}: ${name} must be contiguous; call contiguous() first`);
    }
    return tensor;
  }

  /** The innermost elements must be neighbours; other strides are free. */
  #dense(name: string, tensor: Tensor): Tensor {
    const last = tensor.shape.length - 1;
    if (last >= 0 && tensor.shape[last] > 1 && tensor.strides[last] !== 1) {
      throw new WarpgradRangeError(
        `${this.#caller}: ${name} must have stride 1 in its last dimension, got ${tensor.strides[last]}; call contiguous() first`,
      );
    }
    return tensor;
  }

  /** The addon's half of a tensor, whom a getter of the options may have disposed of since it was checked. */
  handle(name: string, tensor: Tensor): NativeTensor {
    return nativeTensor(this.#caller, tensor, name);
  }

  optionalHandle(name: string, tensor: Tensor | undefined): NativeTensor | undefined {
    return tensor && nativeTensor(this.#caller, tensor, name);
  }

  stream(value: unknown): Stream {
    return resolveStream(this.#caller, value, this.#first.device);
  }
}

/**
 * Checks that both operands have heads, [..., heads, dim], and that as many of one read each of the other's.
 * @throws WarpgradRangeError
 */
export function expectHeads(caller: string, name: string, one: Tensor, otherName: string, other: Tensor): void {
  const heads = headsOf(caller, name, one);
  const otherHeads = headsOf(caller, otherName, other);
  if (heads % otherHeads === 0) return;
  throw new WarpgradRangeError(
    `${caller}: the ${heads} heads of ${name} must be a multiple of the ${otherHeads} heads of ${otherName}`,
  );
}

function headsOf(caller: string, name: string, { shape }: Tensor): number {
  const heads = shape[shape.length - 2];
  if (heads >= 1) return heads;
  throw new WarpgradRangeError(`${caller}: ${name} must have at least 1 head, got shape [${shape.join(', ')}]`);
}

/** @throws WarpgradRangeError */
export function expectHeadDim(caller: string, name: string, dim: number, largest: number): void {
  if (dim >= 1 && dim <= largest) return;
  throw new WarpgradRangeError(`${caller}: the head dimension of ${name} must be 1 to ${largest}, got ${dim}`);
}

/**
 * Checks offsets of packed sequences, `[0, …, end]`, never falling, ending at `rows` or before: data on the host, copied.
 * @throws WarpgradTypeError, WarpgradRangeError
 */
export function expectCuSeqlens(caller: string, name: string, value: unknown, rows: number): Int32Array {
  const offsets = readOffsets(caller, name, value);
  const bad = (what: string) => new WarpgradRangeError(`${caller}: ${name} ${what}`);
  if (offsets.length < 2) throw bad(`must have at least 2 entries, [0, end], got ${offsets.length}`);
  if (offsets[0] !== 0) throw bad(`must start at 0, got ${offsets[0]}`);
  for (let i = 1; i < offsets.length; ++i) {
    if (offsets[i] < offsets[i - 1]) throw bad(`must not fall: entry ${i} is ${offsets[i]} after ${offsets[i - 1]}`);
  }
  if (offsets.at(-1)! > rows) throw bad(`must end within the ${rows} rows, got ${offsets.at(-1)}`);
  return offsets;
}

function readOffsets(caller: string, name: string, value: unknown): Int32Array {
  if (types.isInt32Array(value)) return value.length === 0 ? new Int32Array(0) : Int32Array.from(value); // or detached
  if (isList(value)) {
    const offsets: number[] = []; // each entry is read once: what is checked is what is used
    for (const entry of value) {
      if (typeof entry !== 'number' || entry !== (entry | 0)) {
        throw new WarpgradRangeError(`${caller}: ${name} must hold whole numbers below 2^31, got ${describe(entry)}`);
      }
      offsets.push(entry);
    }
    return Int32Array.from(offsets);
  }
  if (isTensor(value) && value.dtype === 'int32' && value.device === 'cpu' && value.rank === 1) {
    if (value.disposed) throw new WarpgradError('ERR_WARPGRAD_DISPOSED', `${caller}: ${name} was disposed`);
    return value.dataSync() as Int32Array;
  }
  const got = isTensor(value)
    ? `a ${value.dtype} tensor of ${value.rank} dimensions on ${value.device}`
    : describe(value);
  throw new WarpgradTypeError(
    `${caller}: ${name} must be a number[], an Int32Array or an int32 CPU tensor of one dimension, got ${got}`,
  );
}

/** What `make` gives. If it fails, the tensors that it has handed over are disposed of. */
export function disposedOnFailure<Result>(make: (made: (tensor: Tensor) => Tensor) => Result): Result {
  const tensors: Tensor[] = [];
  try {
    return make((tensor) => {
      tensors.push(tensor);
      return tensor;
    });
  } catch (error) {
    for (const tensor of tensors) tensor.dispose();
    throw error;
  }
}
