import { types } from 'node:util';

import { DTYPES, type DType, type TypedArray } from './dtype';
import { WarpgradRangeError, WarpgradTypeError } from './errors';

/** Numbers nested to any depth, rectangular. */
export type NestedNumbers = number | readonly NestedNumbers[];

/** What `Tensor.from` accepts. */
export type TensorData = NestedNumbers | Float32Array | Float64Array | Int32Array | Uint16Array | ArrayBufferView;

export interface HostData {
  /** Elements of `dtype`; never shares memory with what the caller passed unless it must not be kept. */
  readonly array: TypedArray;
  readonly dtype: DType;
  /** The shape of nested numbers, or one dimension of a typed array. */
  readonly shape: readonly number[];
}

const KINDS = 'a Float32Array, Float64Array, Int32Array, Uint16Array (raw bits) or nested numbers';

/** Reads `data` as elements of float32, int32 or, from raw bits, a 16-bit type. @throws WarpgradTypeError, WarpgradRangeError */
export function readHostData(caller: string, data: unknown, dtype: DType | undefined): HostData {
  if (ArrayBuffer.isView(data)) return readTypedArray(caller, data, dtype);
  if (typeof data === 'number' || Array.isArray(data)) return readNested(caller, data as NestedNumbers, dtype);
  throw new WarpgradTypeError(`${caller}: data must be ${KINDS}, got ${describe(data)}`);
}

function describe(value: unknown): string {
  if (value === null) return 'null';
  return typeof value === 'object' ? ((value.constructor as { name?: string })?.name ?? 'an object') : typeof value;
}

function readTypedArray(caller: string, view: ArrayBufferView, dtype: DType | undefined): HostData {
  expectAttached(caller, view);
  // The addon reads plain ArrayBuffers: what other threads may change is copied first.
  const data = types.isSharedArrayBuffer(view.buffer) ? copyOf(view) : view;
  if (types.isFloat32Array(data)) return { array: data, dtype: 'float32', shape: [data.length] };
  if (types.isFloat64Array(data)) return { array: Float32Array.from(data), dtype: 'float32', shape: [data.length] };
  if (types.isInt32Array(data)) {
    const floats = dtype !== undefined && dtype !== 'int32';
    return floats
      ? { array: Float32Array.from(data), dtype: 'float32', shape: [data.length] }
      : { array: data, dtype: 'int32', shape: [data.length] };
  }
  const isHalf = (data as object)[Symbol.toStringTag as never] === 'Float16Array';
  if (types.isUint16Array(data) || isHalf) {
    const bits = types.isUint16Array(data) ? data : new Uint16Array(data.buffer, data.byteOffset, data.byteLength / 2);
    const kind = dtype ?? (isHalf ? 'float16' : undefined);
    if (kind === undefined || DTYPES[kind].bytes !== 2 || (isHalf && kind !== 'float16')) {
      throw new WarpgradTypeError(
        `${caller}: a ${isHalf ? 'Float16Array needs dtype float16' : 'Uint16Array holds raw bits and needs dtype float16 or bfloat16'}, got dtype ${String(dtype)}`,
      );
    }
    return { array: bits, dtype: kind, shape: [bits.length] };
  }
  throw new WarpgradTypeError(`${caller}: data must be ${KINDS}, got ${describe(data)}`);
}

function copyOf(view: ArrayBufferView): ArrayBufferView {
  const Kind = view.constructor as new (source: ArrayBufferView) => ArrayBufferView;
  return new Kind(view);
}

function expectAttached(caller: string, view: ArrayBufferView): void {
  if (view.byteLength > 0) return;
  try {
    new Uint8Array(view.buffer as ArrayBuffer);
  } catch {
    throw new WarpgradTypeError(`${caller}: the buffer of data is detached: it was transferred elsewhere`);
  }
}

function readNested(caller: string, data: NestedNumbers, dtype: DType | undefined): HostData {
  const shape: number[] = [];
  for (let level: NestedNumbers = data; Array.isArray(level); level = level[0] as NestedNumbers) {
    shape.push(level.length);
    if (level.length === 0) break;
  }
  const size = shape.reduce((product, dim) => product * dim, 1);
  const isInt = dtype === 'int32';
  const array = isInt ? new Int32Array(size) : new Float32Array(size);
  let next = 0;
  const fill = (value: NestedNumbers, depth: number): void => {
    if (depth === shape.length) {
      if (typeof value !== 'number') {
        throw new WarpgradTypeError(
          `${caller}: data must be numbers nested evenly, got ${describe(value)} among the elements`,
        );
      }
      if (isInt && value !== (value | 0)) {
        throw new WarpgradRangeError(`${caller}: int32 data must be whole numbers in range, got ${value}`);
      }
      array[next++] = value;
      return;
    }
    if (!Array.isArray(value) || value.length !== shape[depth]) {
      const got = Array.isArray(value) ? `${value.length} elements` : describe(value);
      throw new WarpgradRangeError(
        `${caller}: data must be nested evenly: expected ${shape[depth]} elements in each list of dimension ${depth}, got ${got}`,
      );
    }
    for (const element of value) fill(element as NestedNumbers, depth + 1);
  };
  fill(data, 0);
  return { array, dtype: isInt ? 'int32' : 'float32', shape };
}
