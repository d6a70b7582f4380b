import { types } from 'node:util';

import { DTYPES, type DType, type TypedArray } from './dtype';
import { WarpgradRangeError, WarpgradTypeError } from './errors';
import { describe, isList, MAX_RANK, sizeOf } from './validate';

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

const MAX_NESTED = 2 ** 30;
const KINDS = 'a Float32Array, Float64Array, Int32Array, Uint16Array (raw bits) or nested numbers';

/**
 * Reads `data` as elements of float32, int32 or, from raw bits, a 16-bit type, which converted to `dtype` give the values
 * rounded once. @throws WarpgradTypeError, WarpgradRangeError
 */
export function readHostData(caller: string, data: unknown, dtype: DType | undefined): HostData {
  if (types.isTypedArray(data)) return readTypedArray(caller, data, dtype);
  if (typeof data === 'number' || isList(data)) return readNested(caller, data as NestedNumbers, dtype);
  throw new WarpgradTypeError(`${caller}: data must be ${KINDS}, got ${describe(data)}`);
}

function readTypedArray(caller: string, data: NodeJS.TypedArray, dtype: DType | undefined): HostData {
  const view = plainView(caller, data);
  if (view instanceof Float32Array && dtype !== 'int32') {
    return { array: unshared(view), dtype: 'float32', shape: [view.length] };
  }
  if (view instanceof Int32Array) return { array: unshared(view), dtype: 'int32', shape: [view.length] };
  if (view instanceof Float64Array || view instanceof Float32Array) {
    const array = dtype === 'int32' ? new Int32Array(view.length) : new Float32Array(view.length);
    const put = writerOf(caller, array, dtype);
    view.forEach((value, i) => put(i, value));
    return { array, dtype: dtype === 'int32' ? 'int32' : 'float32', shape: [view.length] };
  }
  if (view instanceof Uint16Array) {
    const isHalf = !types.isUint16Array(data);
    const kind = dtype ?? (isHalf ? 'float16' : undefined);
    if (kind === undefined || DTYPES[kind].bytes !== 2 || (isHalf && kind !== 'float16')) {
      throw new WarpgradTypeError(
        `${caller}: a ${isHalf ? 'Float16Array needs dtype float16' : 'Uint16Array holds raw bits and needs dtype float16 or bfloat16'}, got dtype ${String(dtype)}`,
      );
    }
    return { array: unshared(view), dtype: kind, shape: [view.length] };
  }
  throw new WarpgradTypeError(`${caller}: data must be ${KINDS}, got ${describe(data)}`);
}

const TypedArrayPrototype = Object.getPrototypeOf(Uint8Array.prototype) as Uint8Array;
/** The engine's own answer: a subclass may have fields of the same names. */
function fieldOf(
  view: NodeJS.TypedArray,
  name: 'buffer' | 'byteOffset' | 'length' | typeof Symbol.toStringTag,
): unknown {
  return Object.getOwnPropertyDescriptor(TypedArrayPrototype, name)!.get!.call(view);
}

const VIEWS: Readonly<
  Record<string, new (buffer: ArrayBuffer, byteOffset: number, length: number) => TypedArray | Float64Array>
> = {
  Float32Array,
  Float64Array,
  Int32Array,
  Uint16Array,
  Float16Array: Uint16Array,
};

/** The elements in an array that nothing overrides, bits for 16-bit ones. */
function plainView(caller: string, data: NodeJS.TypedArray): TypedArray | Float64Array | undefined {
  const View = VIEWS[fieldOf(data, Symbol.toStringTag) as string];
  if (!View) return undefined;
  const buffer = fieldOf(data, 'buffer') as ArrayBuffer;
  const length = fieldOf(data, 'length') as number;
  if (length === 0) expectInside(caller, data, buffer);
  return new View(buffer, fieldOf(data, 'byteOffset') as number, length);
}

/** Refuses arrays that are empty only because they lost their memory. */
function expectInside(caller: string, data: NodeJS.TypedArray, buffer: ArrayBuffer): void {
  try {
    TypedArrayPrototype.indexOf.call(data, 0);
  } catch {
    const what = isDetached(buffer)
      ? 'is detached: it was transferred elsewhere'
      : 'was resized, and data lie outside it';
    throw new WarpgradTypeError(`${caller}: the buffer of data ${what}`);
  }
}

function isDetached(buffer: ArrayBuffer): boolean {
  try {
    new Uint8Array(buffer);
    return false;
  } catch {
    return true;
  }
}

/** The addon reads plain ArrayBuffers: what other threads may change is copied first. */
function unshared<Kind extends TypedArray>(array: Kind): Kind {
  return types.isSharedArrayBuffer(array.buffer) ? (array.slice() as Kind) : array;
}

/** Stores doubles in `array` so that a later conversion to `dtype` rounds them once. */
function writerOf(caller: string, array: Float32Array | Int32Array, dtype: DType | undefined) {
  if (dtype === 'int32') {
    return (i: number, value: number): void => {
      if (value !== (value | 0)) {
        throw new WarpgradRangeError(`${caller}: int32 data must be whole numbers in range, got ${value}`);
      }
      array[i] = value;
    };
  }
  const narrow = dtype !== undefined && DTYPES[dtype].bytes === 2;
  return (i: number, value: number): void => {
    array[i] = narrow ? roundToOdd(value) : value;
  };
}

const oddFloat = new Float32Array(1);
const oddBits = new Int32Array(oddFloat.buffer);

/**
 * The float32 next to a double that has an odd significand, or its exact value: rounding that to a shorter format gives
 * what rounding the double at once gives (Boldo and Melquiond, "When double rounding is odd", 2005).
 */
function roundToOdd(value: number): number {
  const nearest = Math.fround(value);
  if (nearest === value || !Number.isFinite(nearest)) return nearest;
  oddFloat[0] = nearest;
  if ((oddBits[0] & 1) === 0) oddBits[0] += Math.abs(value) > Math.abs(nearest) ? 1 : -1;
  return oddFloat[0];
}

function readNested(caller: string, data: NestedNumbers, dtype: DType | undefined): HostData {
  const shape: number[] = [];
  for (let level: NestedNumbers = data; isList(level); level = level[0]) {
    shape.push(level.length);
    if (level.length === 0) break;
    if (shape.length > MAX_RANK)
      throw new WarpgradRangeError(`${caller}: data must be nested at most ${MAX_RANK} deep`);
  }
  const size = sizeOf(shape);
  if (size > MAX_NESTED) {
    throw new WarpgradRangeError(
      `${caller}: nested data must have at most 2^30 elements, got ${size}; use a typed array`,
    );
  }
  const isInt = dtype === 'int32';
  const array = isInt ? new Int32Array(size) : new Float32Array(size);
  const put = writerOf(caller, array, dtype);
  let next = 0;
  const fill = (value: NestedNumbers, depth: number): void => {
    if (depth === shape.length) {
      if (typeof value !== 'number') {
        throw new WarpgradTypeError(
          `${caller}: data must be numbers nested evenly, got ${describe(value)} among the elements`,
        );
      }
      put(next++, value);
      return;
    }
    if (!isList(value) || value.length !== shape[depth]) {
      const got = isList(value) ? `${value.length} elements` : describe(value);
      throw new WarpgradRangeError(
        `${caller}: data must be nested evenly: expected ${shape[depth]} elements in each list of dimension ${depth}, got ${got}`,
      );
    }
    for (const element of value) fill(element, depth + 1);
  };
  fill(data, 0);
  if (next !== size) {
    throw new WarpgradRangeError(
      `${caller}: data changed while they were read: expected ${size} elements, got ${next}`,
    );
  }
  return { array, dtype: isInt ? 'int32' : 'float32', shape };
}
