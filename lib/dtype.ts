import { WarpgradTypeError } from './errors';
import { describe } from './validate';

/** Element types of tensors. `float16` is IEEE binary16. */
export type DType = 'float32' | 'float16' | 'bfloat16' | 'int32';

/** What `data()` gives: values for the 32-bit types, raw bits for the 16-bit ones. */
export type TypedArray = Float32Array | Int32Array | Uint16Array;

interface DTypeInfo {
  /** As in native/core/dtype.h. */
  readonly nativeCode: number;
  readonly bytes: number;
  readonly arrayType: { new (buffer: ArrayBuffer): TypedArray };
}

export const DTYPES: Readonly<Record<DType, DTypeInfo>> = {
  float32: { nativeCode: 0, bytes: 4, arrayType: Float32Array },
  float16: { nativeCode: 1, bytes: 2, arrayType: Uint16Array },
  bfloat16: { nativeCode: 2, bytes: 2, arrayType: Uint16Array },
  int32: { nativeCode: 3, bytes: 4, arrayType: Int32Array },
};

/** Checks a dtype option. @throws WarpgradTypeError */
export function expectDType(caller: string, value: unknown): DType {
  if (typeof value === 'string' && Object.hasOwn(DTYPES, value)) return value as DType;
  throw new WarpgradTypeError(
    `${caller}: dtype must be one of ${Object.keys(DTYPES).join(', ')}, got ${describe(value)}`,
  );
}
