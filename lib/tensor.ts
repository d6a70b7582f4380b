import { boundToThread, hideMark } from './bound-to-thread';
import { resolveDevice, type Device } from './device';
import { DTYPES, expectDType, type DType, type TypedArray } from './dtype';
import { fromNative, native, WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { letGoShare, release, takeReleased, type TensorShare } from './handles';
import { readHostData, type TensorData } from './host-data';
import { addon, type NativeTensor } from './native';
import {
  contiguousStrides,
  expectAddress,
  expectApart,
  expectShape,
  expectStrides,
  overlaps,
  putSizes,
} from './layout';
import { expectTensorOptions, nativeStream, resolveStream, type Stream } from './stream';
import type { ConvertOptions, PointerOptions, TensorOptions } from './tensor-options';
import { describe, expectDim, expectKnownOptions, expectShapeOption, sizeOf } from './validate';

export type { ConvertOptions, PointerOptions, TensorOptions } from './tensor-options';

const POINTER_OPTIONS = ['dtype', 'device', 'strides', 'owner'];

const NOT_CLONEABLE = boundToThread('a Tensor of warpgrad');

/** What only this file can hand to the constructor. */
const MADE_HERE = Symbol('made here');

/** The addon's half of a live tensor. Internal. @throws WarpgradError with ERR_WARPGRAD_DISPOSED */
export let nativeTensor: (caller: string, tensor: Tensor, name?: string) => NativeTensor;
/** Whether a value is a tensor of this package, not merely something with its prototype. Internal. */
export let isTensor: (value: unknown) => value is Tensor;
/** A tensor's elements for somebody who needs them even when it is disposed; given up with `letGoShare`. Internal. */
export let shareTensor: (caller: string, tensor: Tensor) => TensorShare;
/** A fresh contiguous tensor with undefined contents, for an operation to write. Internal. */
export let allocateTensor: (caller: string, shape: readonly number[], dtype: DType, stream: Stream) => Tensor;
/** The same without memory yet: the addon gives it some in the operation that writes it. Internal. */
export let pendingTensor: (shape: readonly number[], dtype: DType, stream: Stream) => Tensor;

/**
 * A strided view on a buffer of one device, which several tensors may share. The buffer is freed once all its tensors are
 * disposed or collected, and the work queued on it is done.
 */
export class Tensor {
  /** Size of each dimension. */
  readonly shape: readonly number[];
  readonly dtype: DType;
  readonly device: Device;
  readonly #stream: Stream;
  /** Made when first asked for, unless they are not row-major. */
  #strides: readonly number[] | undefined;
  #handle: NativeTensor | null;
  /** Once somebody asked for it. */
  #share: TensorShare | undefined;
  /** @internal */
  readonly notCloneable = NOT_CLONEABLE;

  /** Made by this package, not merely something with the prototype. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && #handle in value;
  }

  private constructor(
    proof: typeof MADE_HERE,
    handle: NativeTensor,
    shape: readonly number[],
    strides: readonly number[] | undefined,
    dtype: DType,
    stream: Stream,
  ) {
    if (proof !== MADE_HERE) throw new WarpgradTypeError('Tensor: use Tensor.from, empty, zeros or fromPointer');
    this.#handle = handle;
    this.#stream = stream;
    this.#strides = strides;
    this.shape = shape;
    this.dtype = dtype;
    this.device = stream.device;
    Object.freeze(this); // what was checked once must stay so
  }

  /**
   * A tensor with a copy of `data`: a typed array, nested numbers or one number. Values are rounded to nearest even for
   * the 16-bit types; a Uint16Array holds raw bits of the 16-bit type that `dtype` names.
   * @param shape default: the nesting of the data, or one dimension
   * @throws WarpgradTypeError for other data; WarpgradRangeError if the shape does not fit them
   */
  static from(data: TensorData, shape?: readonly number[], options: TensorOptions = {}): Tensor {
    const caller = 'Tensor.from';
    const inferred = '; pass undefined to take it from the data';
    const given = shape === undefined ? undefined : expectShapeOption(caller, shape, inferred);
    expectTensorOptions(caller, options);
    const dtype = options.dtype === undefined ? undefined : expectDType(caller, options.dtype);
    const { device = 'cpu' } = options;
    const stream = resolveStream(caller, options.stream, resolveDevice(caller, device));
    // Last, as the array may share its memory with the data: nothing of the caller's runs until they are copied.
    const host = readHostData(caller, data, dtype);
    const dims = given ?? Object.freeze([...host.shape]);
    if (sizeOf(dims) !== host.array.length) {
      throw new WarpgradRangeError(
        `${caller}: shape [${dims.join(', ')}] has ${sizeOf(dims)} elements, the data have ${host.array.length}`,
      );
    }
    const tensor = allocateTensor(caller, dims, host.dtype, stream);
    let result: Tensor | undefined;
    try {
      native(() => addon.tensorWrite(nativeStream(stream), nativeTensor(caller, tensor), host.array), caller);
      result = dtype === undefined || dtype === host.dtype ? tensor : tensor.#to(caller, dtype, tensor.device, stream);
      return result;
    } finally {
      if (result !== tensor) tensor.dispose();
    }
  }

  /** A tensor with undefined contents. */
  static empty(shape: readonly number[], options: TensorOptions = {}): Tensor {
    return Tensor.#make('Tensor.empty', shape, options, false);
  }

  /** A tensor of zeros. */
  static zeros(shape: readonly number[], options: TensorOptions = {}): Tensor {
    return Tensor.#make('Tensor.zeros', shape, options, true);
  }

  static #make(caller: string, shape: readonly number[], options: TensorOptions, zeroed: boolean): Tensor {
    const dims = expectShapeOption(caller, shape); // first: sizes given one by one would be taken for options
    expectTensorOptions(caller, options);
    const { dtype: name = 'float32', device = 'cpu' } = options;
    const dtype = expectDType(caller, name);
    const stream = resolveStream(caller, options.stream, resolveDevice(caller, device));
    return Tensor.#allocate(caller, dims, dtype, stream, zeroed);
  }

  static #allocate(caller: string, shape: readonly number[], dtype: DType, stream: Stream, zeroed: boolean): Tensor {
    const code = DTYPES[dtype].nativeCode;
    const make = () => addon.tensorAllocate(nativeStream(stream), code, putSizes(shape), zeroed, takeReleased());
    const handle = native(make, caller);
    return new Tensor(MADE_HERE, handle, shape, undefined, dtype, stream);
  }

  /**
   * A tensor on memory that somebody else made and frees; nothing is copied. What runs here is ordered by streams of this
   * package alone: work of others on the same memory must be done, or ordered by events (`stream.handle`).
   *
   * That the memory holds the elements is trusted. On a GPU its address must at least belong to that device.
   * @param address of the first element, a multiple of its size
   * @throws WarpgradTypeError, WarpgradRangeError
   */
  static fromPointer(address: bigint, shape: readonly number[], options: PointerOptions = {}): Tensor {
    const caller = 'Tensor.fromPointer';
    const dims = expectShapeOption(caller, shape);
    expectKnownOptions(caller, options, POINTER_OPTIONS);
    const { dtype: name = 'float32', device = 'cpu', owner } = options;
    const dtype = expectDType(caller, name);
    const stream = resolveStream(caller, undefined, resolveDevice(caller, device));
    if (typeof address !== 'bigint') {
      throw new WarpgradTypeError(`${caller}: address must be a bigint, got ${describe(address)}`);
    }
    if (owner !== undefined && (owner === null || !['object', 'function'].includes(typeof owner))) {
      throw new WarpgradTypeError(`${caller}: owner must be an object, got ${describe(owner)}`);
    }
    const given = options.strides === undefined ? undefined : expectStrides(caller, options.strides, dims.length);
    const strides = given ?? contiguousStrides(dims);
    expectAddress(caller, { address, shape: dims, strides, dtype });
    const rank = putSizes(dims, strides);
    const code = DTYPES[dtype].nativeCode;
    const handle = native(() => addon.tensorAdopt(nativeStream(stream), code, rank, address, owner));
    return new Tensor(MADE_HERE, handle, dims, given, dtype, stream);
  }

  /** Number of dimensions. */
  get rank(): number {
    return this.shape.length;
  }

  /** Number of elements. */
  get size(): number {
    return sizeOf(this.shape);
  }

  /** Distance between neighbours of each dimension, in elements. */
  get strides(): readonly number[] {
    return (this.#strides ??= contiguousStrides(this.shape));
  }

  /** Bytes of the elements; a view may span more memory. */
  get byteLength(): number {
    return this.size * DTYPES[this.dtype].bytes;
  }

  /** Address of the first element on its device. */
  get address(): bigint {
    return native(() => addon.tensorAddress(nativeTensor('address', this)));
  }

  /** Whether the elements lie in row-major order without gaps. */
  get isContiguous(): boolean {
    if (this.#strides === undefined) return true;
    const dense = contiguousStrides(this.shape);
    return this.size === 0 || this.#strides.every((stride, i) => stride === dense[i] || this.shape[i] === 1);
  }

  get disposed(): boolean {
    return this.#handle === null;
  }

  /** The same elements in another shape, sharing the buffer. @throws WarpgradRangeError unless contiguous */
  view(shape: readonly number[]): Tensor {
    const dims = expectShapeOption('view', shape);
    if (!this.isContiguous) {
      throw new WarpgradRangeError('view: the tensor is not contiguous; call contiguous() first');
    }
    if (sizeOf(dims) !== this.size) {
      throw new WarpgradRangeError(
        `view: shape [${dims.join(', ')}] has ${sizeOf(dims)} elements, the tensor has ${this.size}`,
      );
    }
    return this.#view('view', dims, contiguousStrides(dims), 0);
  }

  /** Indices `start` to `end - 1` of one dimension, sharing the buffer. */
  slice(dim: number, start: number, end: number): Tensor {
    expectDim('slice', dim, this.rank);
    const size = this.shape[dim];
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end > size || start > end) {
      throw new WarpgradRangeError(
        `slice: expected 0 <= start <= end <= ${size}, got start ${describe(start)}, end ${describe(end)}`,
      );
    }
    const empty = start === end;
    const shape = this.shape.map((extent, i) => (i !== dim ? extent : empty ? 0 : end - start)); // -0 - 0 is -0
    return this.#view('slice', shape, this.strides, empty ? 0 : start * this.strides[dim]);
  }

  /** Two dimensions exchanged, sharing the buffer. */
  transpose(dim0: number, dim1: number): Tensor {
    expectDim('transpose', dim0, this.rank);
    expectDim('transpose', dim1, this.rank);
    const swap = (list: readonly number[]) =>
      list.map((value, i) => (i === dim0 ? list[dim1] : i === dim1 ? list[dim0] : value));
    return this.#view('transpose', swap(this.shape), swap(this.strides), 0);
  }

  /** Dimensions of size 1 repeated to `shape` with stride 0, sharing the buffer. */
  expand(shape: readonly number[]): Tensor {
    const dims = expectShapeOption('expand', shape);
    if (dims.length !== this.rank || !dims.every((size, i) => size === this.shape[i] || this.shape[i] === 1)) {
      throw new WarpgradRangeError(
        `expand: expected [${this.shape.join(', ')}] with dimensions of size 1 enlarged, got [${dims.join(', ')}]`,
      );
    }
    const strides = this.strides.map((stride, i) => (dims[i] === this.shape[i] ? stride : 0));
    return this.#view('expand', dims, strides, 0);
  }

  /**
   * A contiguous copy with another dtype or on another device. A copy from the CPU to a GPU waits for the CPU operations
   * that make its elements; all else returns at once. Float to int32 truncates towards zero and saturates, NaN
   * gives 0; other conversions round to nearest even.
   */
  to(options: ConvertOptions): Tensor {
    const caller = 'to';
    expectTensorOptions(caller, options);
    const { dtype: name = this.dtype } = options;
    const dtype = expectDType(caller, name);
    const device = options.device === undefined ? this.device : resolveDevice(caller, options.device);
    return this.#to(caller, dtype, device, options.stream);
  }

  #to(caller: string, dtype: DType, device: Device, stream: Stream | undefined): Tensor {
    if (device !== this.device) return this.#transfer(caller, dtype, device, stream);
    const target = stream === undefined ? this.#stream : resolveStream(caller, stream, device);
    const source = nativeTensor(caller, this);
    const result = Tensor.#allocate(caller, this.shape, dtype, target, false);
    native(() => addon.tensorCopy(nativeStream(target), nativeTensor(caller, result), source, false), caller);
    return result;
  }

  /**
   * Overwrites the elements with those of `source`, converted to this dtype, after all work that was enqueued on them. For
   * tensors that a captured graph reads: everything else in this package writes a tensor once. On a GPU it waits for reads
   * of more than 16 MiB that are under way, as a replay does. What an operation failed to write stays failed.
   * @param source of the same shape, on any device
   */
  copyFrom(source: Tensor, options: { stream?: Stream | undefined } = {}): void {
    const caller = 'copyFrom';
    expectKnownOptions(caller, options, ['stream']);
    const chosen = options.stream; // first: a getter may dispose of a tensor
    if (!isTensor(source)) throw new WarpgradTypeError(`${caller}: source must be a Tensor, got ${describe(source)}`);
    if (this.disposed || source.disposed) {
      throw new WarpgradError(
        'ERR_WARPGRAD_DISPOSED',
        `${caller}: ${this.disposed ? 'the target' : 'source'} was disposed`,
      );
    }
    const stream = chosen === undefined ? this.#stream : resolveStream(caller, chosen, this.device);
    expectShape(caller, source, this.shape);
    expectApart(caller, this);
    const target = nativeTensor(caller, this);
    const direct = source.device === this.device && !overlaps(this, source);
    const here = direct ? source : source.#to(caller, this.dtype, this.device, stream);
    try {
      native(() => addon.tensorCopy(nativeStream(stream), target, nativeTensor(caller, here), true), caller);
    } finally {
      if (here !== source) here.dispose();
    }
  }

  /** Converts on this device, then copies to the other one, on a stream of the target, or of the GPU when that is the CPU. */
  #transfer(caller: string, dtype: DType, device: Device, stream: Stream | undefined): Tensor {
    const target = resolveStream(caller, stream, device);
    const source = this.#dense(caller, dtype, undefined);
    try {
      const result = Tensor.#allocate(caller, this.shape, dtype, target, false);
      const copyStream = device === 'cpu' ? this.#stream : target;
      const [to, from] = [nativeTensor(caller, result), nativeTensor(caller, source)];
      native(() => addon.tensorCopy(nativeStream(copyStream), to, from, false), caller);
      return result;
    } finally {
      source.dispose();
    }
  }

  /** A contiguous copy, or another tensor on the same buffer when this one is contiguous. */
  contiguous(options: { stream?: Stream | undefined } = {}): Tensor {
    const caller = 'contiguous';
    expectKnownOptions(caller, options, ['stream']);
    const chosen = options.stream;
    const stream = chosen === undefined ? undefined : resolveStream(caller, chosen, this.device);
    return this.#dense(caller, this.dtype, stream);
  }

  /** Without gaps, on this device; a view where that is so already. */
  #dense(caller: string, dtype: DType, stream: Stream | undefined): Tensor {
    return dtype === this.dtype && this.isContiguous
      ? this.#view(caller, this.shape, contiguousStrides(this.shape), 0)
      : this.#to(caller, dtype, this.device, stream);
  }

  /**
   * The elements in row-major order once the work that produces them is done: values of float32 and int32, raw bits of
   * float16 and bfloat16 (`to({ dtype: 'float32' })` gives their values). Rejects if that work failed.
   */
  async data(): Promise<TypedArray> {
    const handle = nativeTensor('data', this);
    try {
      return new DTYPES[this.dtype].arrayType(await addon.tensorRead(nativeStream(this.#stream), handle));
    } catch (error) {
      throw fromNative(error);
    }
  }

  /** Like `data`, blocking the thread. */
  dataSync(): TypedArray {
    const handle = nativeTensor('dataSync', this);
    return new DTYPES[this.dtype].arrayType(native(() => addon.tensorReadSync(nativeStream(this.#stream), handle)));
  }

  /** Gives up this tensor's share in its buffer. Queued work that uses the buffer still runs. Harmless when repeated. */
  dispose(): void {
    if (this.#share) letGoShare(this.#share);
    else if (this.#handle) release(this.#handle);
    this.#handle = null;
    this.#share = undefined;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #view(caller: string, shape: readonly number[], strides: readonly number[], offset: number): Tensor {
    const handle = nativeTensor(caller, this);
    const view = native(() => addon.tensorView(handle, putSizes(shape, strides), offset, takeReleased()));
    return new Tensor(MADE_HERE, view, Object.freeze(shape), Object.freeze(strides), this.dtype, this.#stream);
  }

  static {
    nativeTensor = (caller, tensor, name = 'the tensor') => {
      if (tensor.#handle) return tensor.#handle;
      throw new WarpgradError('ERR_WARPGRAD_DISPOSED', `${caller}: ${name} was disposed`);
    };
    shareTensor = (caller, tensor) => {
      const share = (tensor.#share ??= { handle: nativeTensor(caller, tensor), holders: 1 });
      ++share.holders;
      return share;
    };
    isTensor = (value): value is Tensor => typeof value === 'object' && value !== null && #handle in value;
    allocateTensor = (caller, shape, dtype, stream) => Tensor.#allocate(caller, shape, dtype, stream, false);
    pendingTensor = (shape, dtype, stream) =>
      new Tensor(MADE_HERE, takeReleased() ?? addon.tensorHandle(), shape, undefined, dtype, stream);
  }
}
hideMark(Tensor);
