import { resolveDevice, type Device, type DeviceOption } from './device';
import { DTYPES, expectDType, type DType, type TypedArray } from './dtype';
import { fromNative, native, WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { readHostData, type TensorData } from './host-data';
import { addon, type NativeTensor } from './native';
import { nativeStream, resolveStream, type Stream } from './stream';
import { describe, expectDim, expectKnownOptions, expectShapeOption, sizeOf } from './validate';

export interface TensorOptions {
  /** Element type. Default: float32, or what the data say. */
  dtype?: DType;
  /** Default: 'cpu'. */
  device?: DeviceOption;
  /** Stream that fills the tensor. Default: the device's current one. */
  stream?: Stream;
}

export interface ConvertOptions {
  dtype?: DType;
  device?: DeviceOption;
  stream?: Stream;
}

const TENSOR_OPTIONS = ['dtype', 'device', 'stream'];

/** What only this file can hand to the constructor. */
const MADE_HERE = Symbol('made here');

/** The addon's half of a live tensor. Internal. @throws WarpgradError with ERR_WARPGRAD_DISPOSED */
export let nativeTensor: (tensor: Tensor) => NativeTensor;
/** Whether a value is a tensor of this package, not merely something with its prototype. Internal. */
export let isTensor: (value: unknown) => value is Tensor;
/** Another tensor on the same elements, disposed on its own. Internal. */
export let shareTensor: (tensor: Tensor) => Tensor;
/** A fresh contiguous tensor with undefined contents, for an operation to write. Internal. */
export let allocateTensor: (shape: readonly number[], dtype: DType, stream: Stream) => Tensor;

/**
 * A strided view on a buffer of one device, which several tensors may share. The buffer is freed once all its tensors are
 * disposed or collected, and the work queued on it is done.
 */
export class Tensor {
  /** Size of each dimension. */
  readonly shape: readonly number[];
  /** Distance between neighbours of each dimension, in elements. */
  readonly strides: readonly number[];
  readonly dtype: DType;
  readonly device: Device;
  /** Number of elements. */
  readonly size: number;
  readonly #stream: Stream;
  #handle: NativeTensor | null;

  private constructor(
    proof: typeof MADE_HERE,
    handle: NativeTensor,
    shape: readonly number[],
    strides: readonly number[],
    dtype: DType,
    stream: Stream,
  ) {
    if (proof !== MADE_HERE) throw new WarpgradTypeError('Tensor: use Tensor.from, empty or zeros');
    this.#handle = handle;
    this.#stream = stream;
    this.shape = shape;
    this.strides = strides;
    this.dtype = dtype;
    this.device = stream.device;
    this.size = sizeOf(shape);
    Object.freeze(this); // the addon trusts what it was made with; what others read must stay the same
  }

  /**
   * A tensor with a copy of `data`: a typed array, nested numbers or one number. Values are rounded to nearest even for
   * the 16-bit types; a Uint16Array holds raw bits of the 16-bit type that `dtype` names.
   * @param shape default: the nesting of the data, or one dimension
   * @throws WarpgradTypeError for other data; WarpgradRangeError if the shape does not fit them
   */
  static from(data: TensorData, shape?: readonly number[], options: TensorOptions = {}): Tensor {
    const caller = 'Tensor.from';
    expectKnownOptions(caller, options, TENSOR_OPTIONS);
    const dtype = options.dtype === undefined ? undefined : expectDType(caller, options.dtype);
    const { device = 'cpu' } = options;
    const stream = resolveStream(caller, options.stream, resolveDevice(caller, device));
    const given = shape === undefined ? undefined : expectShapeOption(caller, shape);
    // Last, as the array may share its memory with the data: nothing of the caller's runs until they are copied.
    const host = readHostData(caller, data, dtype);
    const dims = given ?? Object.freeze([...host.shape]);
    if (sizeOf(dims) !== host.array.length) {
      throw new WarpgradRangeError(
        `${caller}: shape [${dims.join(', ')}] has ${sizeOf(dims)} elements, the data have ${host.array.length}`,
      );
    }
    const tensor = allocateTensor(dims, host.dtype, stream);
    native(() => nativeTensor(tensor).write(nativeStream(stream), host.array));
    if (dtype === undefined || dtype === host.dtype) return tensor;
    const converted = tensor.to({ dtype, stream });
    tensor.dispose();
    return converted;
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
    expectKnownOptions(caller, options, TENSOR_OPTIONS);
    const dims = expectShapeOption(caller, shape);
    const { dtype: name = 'float32', device = 'cpu' } = options;
    const dtype = expectDType(caller, name);
    const stream = resolveStream(caller, options.stream, resolveDevice(caller, device));
    return Tensor.#allocate(dims, dtype, stream, zeroed);
  }

  static #allocate(shape: readonly number[], dtype: DType, stream: Stream, zeroed: boolean): Tensor {
    const handle = native(() => new addon.NativeTensor(nativeStream(stream), DTYPES[dtype].nativeCode, shape, zeroed));
    return new Tensor(MADE_HERE, handle, shape, contiguousStrides(shape), dtype, stream);
  }

  /** Number of dimensions. */
  get rank(): number {
    return this.shape.length;
  }

  /** Bytes of the elements; a view may span more memory. */
  get byteLength(): number {
    return this.size * DTYPES[this.dtype].bytes;
  }

  /** Address of the first element on its device. */
  get address(): bigint {
    return nativeTensor(this).address();
  }

  /** Whether the elements lie in row-major order without gaps. */
  get isContiguous(): boolean {
    const dense = contiguousStrides(this.shape);
    return this.size === 0 || this.strides.every((stride, i) => stride === dense[i] || this.shape[i] === 1);
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
    return this.#share(dims, contiguousStrides(dims), 0);
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
    const shape = this.shape.map((extent, i) => (i === dim ? end - start : extent));
    const empty = start === end;
    return this.#share(shape, this.strides, empty ? 0 : start * this.strides[dim]);
  }

  /** Two dimensions exchanged, sharing the buffer. */
  transpose(dim0: number, dim1: number): Tensor {
    expectDim('transpose', dim0, this.rank);
    expectDim('transpose', dim1, this.rank);
    const swap = (list: readonly number[]) =>
      list.map((value, i) => (i === dim0 ? list[dim1] : i === dim1 ? list[dim0] : value));
    return this.#share(swap(this.shape), swap(this.strides), 0);
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
    return this.#share(dims, strides, 0);
  }

  /**
   * A contiguous copy with another dtype or on another device. Float to int32 truncates towards zero and saturates, NaN
   * gives 0; other conversions round to nearest even.
   */
  to(options: ConvertOptions): Tensor {
    const caller = 'to';
    expectKnownOptions(caller, options, TENSOR_OPTIONS);
    const { dtype: name = this.dtype } = options;
    const dtype = expectDType(caller, name);
    const device = options.device === undefined ? this.device : resolveDevice(caller, options.device);
    if (device !== this.device) return this.#transfer(dtype, device, options.stream);
    const stream = options.stream === undefined ? this.#stream : resolveStream(caller, options.stream, device);
    const source = nativeTensor(this);
    const result = Tensor.#allocate(this.shape, dtype, stream, false);
    native(() => nativeTensor(result).copyFrom(nativeStream(stream), source));
    return result;
  }

  /** Converts on this device, then copies to the other one, on a stream of the GPU. */
  #transfer(dtype: DType, device: Device, stream: Stream | undefined): Tensor {
    const target = resolveStream('to', stream, device);
    const source = dtype === this.dtype ? this.contiguous() : this.to({ dtype });
    try {
      const result = Tensor.#allocate(this.shape, dtype, target, false);
      const copyStream = device === 'cpu' ? this.#stream : target;
      native(() => nativeTensor(result).copyFrom(nativeStream(copyStream), nativeTensor(source)));
      return result;
    } finally {
      source.dispose();
    }
  }

  /** A contiguous copy, or another tensor on the same buffer when this one is contiguous. */
  contiguous(options: { stream?: Stream } = {}): Tensor {
    expectKnownOptions('contiguous', options, ['stream']);
    if (options.stream !== undefined) resolveStream('contiguous', options.stream, this.device);
    return this.isContiguous ? this.#share(this.shape, contiguousStrides(this.shape), 0) : this.to(options);
  }

  /**
   * The elements in row-major order once the work that produces them is done: values of float32 and int32, raw bits of
   * float16 and bfloat16 (`to({ dtype: 'float32' })` gives their values). Rejects if that work failed.
   */
  async data(): Promise<TypedArray> {
    const handle = nativeTensor(this);
    try {
      return new DTYPES[this.dtype].arrayType(await handle.read(nativeStream(this.#stream)));
    } catch (error) {
      throw fromNative(error);
    }
  }

  /** Like `data`, blocking the thread. */
  dataSync(): TypedArray {
    return new DTYPES[this.dtype].arrayType(native(() => nativeTensor(this).readSync(nativeStream(this.#stream))));
  }

  /** Gives up this tensor's share in its buffer. Queued work that uses the buffer still runs. Harmless when repeated. */
  dispose(): void {
    this.#handle?.release();
    this.#handle = null;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #share(shape: readonly number[], strides: readonly number[], offset: number): Tensor {
    const handle = nativeTensor(this);
    const view = native(() => handle.view(shape, strides, offset));
    return new Tensor(MADE_HERE, view, Object.freeze(shape), Object.freeze(strides), this.dtype, this.#stream);
  }

  static {
    nativeTensor = (tensor) => {
      if (tensor.#handle) return tensor.#handle;
      throw new WarpgradError('ERR_WARPGRAD_DISPOSED', 'the tensor was disposed');
    };
    shareTensor = (tensor) => tensor.#share(tensor.shape, tensor.strides, 0);
    isTensor = (value): value is Tensor => typeof value === 'object' && value !== null && #handle in value;
    allocateTensor = (shape, dtype, stream) => Tensor.#allocate(shape, dtype, stream, false);
  }
}

function contiguousStrides(shape: readonly number[]): readonly number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let i = shape.length - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return Object.freeze(strides);
}
