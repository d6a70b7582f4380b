import type { DeviceOption } from './device';
import type { DType } from './dtype';
import type { Stream } from './stream';

export interface TensorOptions {
  /** Element type. Default: float32, or what the data say. */
  dtype?: DType | undefined;
  /** Default: 'cpu'. */
  device?: DeviceOption | undefined;
  /** Stream that fills the tensor. Default: the device's current one. */
  stream?: Stream | undefined;
}

export interface ConvertOptions {
  dtype?: DType | undefined;
  device?: DeviceOption | undefined;
  stream?: Stream | undefined;
}

export interface PointerOptions {
  /** Element type. Default: float32. */
  dtype?: DType | undefined;
  /** Default: 'cpu'. */
  device?: DeviceOption | undefined;
  /** Distance between neighbours of each dimension, in elements, >= 0. Default: row-major without gaps. */
  strides?: readonly number[] | undefined;
  /** An object that the memory lives as long as; kept alive for as long as the tensor, its views or queued work need it. */
  owner?: object | undefined;
}
