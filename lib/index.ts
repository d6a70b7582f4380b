/// <reference lib="esnext.disposable" preserve="true" />
/**
 * Attention and Kimi Delta Attention for Node.js, forward and backward.
 *
 * @packageDocumentation
 */
export {
  attentionBackward,
  attentionForward,
  type AttentionBackwardOptions,
  type AttentionBackwardResult,
  type AttentionForwardResult,
  type AttentionOptions,
} from './attention';
export {
  configure,
  memoryStats,
  systemInfo,
  type ConfigureOptions,
  type Device,
  type DeviceOption,
  type GpuInfo,
  type MemoryStats,
  type SystemInfo,
} from './device';
export type { DType, TypedArray } from './dtype';
export { WarpgradError, WarpgradRangeError, WarpgradTypeError, type ErrorCode } from './errors';
export type { NestedNumbers, TensorData } from './host-data';
export {
  kdaBackward,
  kdaForward,
  KdaSaved,
  type KdaBackwardOptions,
  type KdaBackwardResult,
  type KdaForwardOptions,
  type KdaForwardResult,
  type KdaForwardResultWithState,
  type KdaGate,
} from './kda';
export type { InstructionSet } from './native';
export { Event, Graph, Stream } from './stream';
export { Tensor, type ConvertOptions, type PointerOptions, type TensorOptions } from './tensor';
