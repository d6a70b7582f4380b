import {
  attentionBackward,
  attentionForward,
  kdaBackward,
  kdaForward,
  Tensor,
  type AttentionOptions,
  type Device,
  type KdaForwardOptions,
} from '../../lib';
import type { AttentionReferenceOptions } from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import type { KdaReferenceOptions } from '../../lib/reference/kda';
import type { AttentionCase } from './attentionCases';
import { decode16, encode16, type Operand } from './dtypes';
import type { KdaCase } from './kdaCases';

// The library's operations on float64 arrays: what a test compares with the reference.

/** A tensor of the library; 16-bit bits are made here, so that no test of an operation leans on its conversions. */
export function toTensor(source: Float64Tensor, dtype: Operand, device: Device = 'cpu'): Tensor {
  if (dtype === 'float32') return Tensor.from(Float32Array.from(source.data), source.shape, { device });
  const bits = converted(source.data, new Uint16Array(source.data.length), (value) => encode16(value, dtype));
  return Tensor.from(bits, source.shape, { dtype, device });
}

export async function fromTensor(tensor: Tensor): Promise<Float64Tensor> {
  const { dtype } = tensor;
  const data = await tensor.data();
  const decode = dtype === 'float16' || dtype === 'bfloat16' ? (bits: number) => decode16(bits, dtype) : Number;
  return { shape: [...tensor.shape], data: converted(data, new Float64Array(data.length), decode) };
}

/** Some times as fast as `from` with a function. */
function converted<Target extends Uint16Array | Float64Array>(
  source: ArrayLike<number>,
  target: Target,
  convert: (value: number) => number,
): Target {
  for (let at = 0; at < source.length; at++) target[at] = convert(source[at]);
  return target;
}

/** Reads all results and disposes of them. */
export async function readAll<Name extends string>(
  tensors: Partial<Record<Name, Tensor>>,
): Promise<Record<Name, Float64Tensor>> {
  const results = {} as Record<Name, Float64Tensor>;
  for (const [name, tensor] of Object.entries(tensors) as [Name, Tensor | undefined][]) {
    if (!tensor) continue;
    results[name] = await fromTensor(tensor);
    tensor.dispose();
  }
  return results;
}

/**
 * Leaves NaN in memory that the allocator is likely to hand out next for results of these shapes: an element that an
 * operation forgets to write then shows.
 */
export function poison(
  shapes: readonly (readonly number[])[],
  dtypes: readonly Operand[],
  device: Device = 'cpu',
): void {
  const fillers = shapes.flatMap((shape) =>
    dtypes.map((dtype) => {
      const size = shape.reduce((product, extent) => product * extent, 1);
      if (dtype === 'float32') return Tensor.from(new Float32Array(size).fill(NaN), shape, { device });
      return Tensor.from(new Uint16Array(size).fill(encode16(NaN, dtype)), shape, { dtype, device });
    }),
  );
  fillers.forEach((filler) => filler.dispose());
}

export type AttentionResults = Record<'out' | 'lse' | 'dq' | 'dk' | 'dv' | 'dSink', Float64Tensor>;

/** The options with their tensors made; they belong to the caller. */
export function attentionOptions(options: AttentionReferenceOptions, device: Device = 'cpu'): AttentionOptions {
  const { sink, cuSeqlensQ, cuSeqlensK, ...rest } = options;
  return {
    ...rest,
    ...(sink && { sink: toTensor(sink, 'float32', device) }),
    ...(cuSeqlensQ && { cuSeqlensQ: Int32Array.from(cuSeqlensQ), cuSeqlensK: Int32Array.from(cuSeqlensK!) }),
  };
}

/** The forward of a case alone, on poisoned memory. */
export async function runAttentionForward(
  item: AttentionCase,
  dtype: Operand,
  device: Device = 'cpu',
): Promise<Pick<AttentionResults, 'out' | 'lse'>> {
  const { inputs, options } = placeAttention(item, dtype, device);
  const results = attentionForward(...inputs, options);
  [...inputs, options.sink].forEach((tensor) => tensor?.dispose());
  return readAll(results as unknown as Record<'out' | 'lse', Tensor>);
}

/** Forward and backward of a case, on poisoned memory. */
export async function runAttention(
  item: AttentionCase,
  dtype: Operand,
  device: Device = 'cpu',
  deterministic = false,
): Promise<AttentionResults> {
  using dOut = toTensor(item.dOut, dtype, device);
  const { inputs, options } = placeAttention(item, dtype, device);
  const { out, lse } = attentionForward(...inputs, options);
  const gradients = attentionBackward(dOut, ...inputs, out, lse, { ...options, deterministic });
  [...inputs, options.sink].forEach((tensor) => tensor?.dispose());
  return readAll({ out, lse, ...gradients });
}

function placeAttention(item: AttentionCase, dtype: Operand, device: Device) {
  const { q, k, v } = item.inputs;
  const inputs = [q, k, v].map((tensor) => toTensor(tensor, dtype, device)) as [Tensor, Tensor, Tensor];
  const options = attentionOptions(item.options, device);
  poison([q.shape, k.shape, v.shape, item.dOut.shape, item.dOut.shape.slice(0, -1)], [dtype, 'float32'], device);
  return { inputs, options };
}

export type KdaResults = Record<
  'out' | 'finalState' | 'dq' | 'dk' | 'dv' | 'dg' | 'dbeta' | 'dInitialState' | 'dALog' | 'dDtBias',
  Float64Tensor
>;

export interface KdaRun {
  readonly dtype: Operand;
  readonly gateDtype?: Operand;
  readonly saveIntermediates?: boolean;
  readonly batchInvariant?: boolean;
  readonly device?: Device;
}

/** The options with their tensors made; they belong to the caller. */
export function kdaOptions(options: KdaReferenceOptions, device: Device = 'cpu'): KdaForwardOptions {
  const { initialState, gate, cuSeqlens, ...rest } = options;
  const { aLog, dtBias, lowerBound } = gate ?? {};
  return {
    ...rest,
    ...(initialState && { initialState: toTensor(initialState, 'float32', device) }),
    ...(gate && {
      gate: {
        ...(aLog && { aLog: toTensor(aLog, 'float32', device) }),
        ...(dtBias && { dtBias: toTensor(dtBias, 'float32', device) }),
        ...(lowerBound !== undefined && { lowerBound }),
      },
    }),
    ...(cuSeqlens && { cuSeqlens: Int32Array.from(cuSeqlens) }),
  };
}

/** Forward and backward of a case, on poisoned memory. */
export async function runKda(item: KdaCase, run: KdaRun): Promise<KdaResults> {
  const { dtype, gateDtype = 'float32', saveIntermediates = false, batchInvariant = false, device = 'cpu' } = run;
  const { q, k, v, g, beta } = item.inputs;
  const operands = [q, k, v].map((tensor) => toTensor(tensor, dtype, device)) as [Tensor, Tensor, Tensor];
  const gates = [g, beta].map((tensor) => toTensor(tensor, gateDtype, device)) as [Tensor, Tensor];
  using dOut = toTensor(item.dOut, dtype, device);
  const dFinalState = item.dFinalState && toTensor(item.dFinalState, 'float32', device);
  const options = kdaOptions(item.options, device);
  poison([q.shape, v.shape, g.shape, beta.shape], [dtype, 'float32'], device);
  const { saved, ...outputs } = kdaForward(...operands, ...gates, {
    ...options,
    outputFinalState: true,
    saveIntermediates,
    batchInvariant,
  });
  const gradients = kdaBackward(dOut, saved, { ...(dFinalState && { dFinalState }) });
  saved.dispose();
  const { initialState, gate } = options;
  [...operands, ...gates, dFinalState, initialState, gate?.aLog, gate?.dtBias].forEach((tensor) => tensor?.dispose());
  return readAll({ ...outputs, ...gradients });
}
