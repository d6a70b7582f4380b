import {
  kdaBackward,
  kdaForward,
  type KdaForwardOptions,
  type KdaForwardResult,
  type Stream,
  type Tensor,
} from '../../lib';
import { readValues, valuesOf, type Pool, type Twin } from './cuda';
import type { Operand } from './dtypes';
import type { KdaCase } from './kdaCases';
import type { KdaResults } from './run';

// KDA on the GPU beside the CPU in float32, for sizes at which arrays of float64 are slow.

export type GateKind = 'bounded' | 'softplus' | 'given';

export interface KdaShape {
  readonly B?: number;
  readonly T: number;
  readonly heads: readonly [H: number, HV: number];
  readonly dims: readonly [K: number, V: number];
  readonly cuSeqlens?: readonly number[];
  readonly gate?: GateKind;
  /** From a normal number to a log decay, for gates that are given. */
  readonly decay?: (value: number) => number;
  readonly dtype?: Exclude<Operand, 'float32'>;
  readonly gateDtype?: Operand;
  readonly stateLayout?: 'kv' | 'vk';
  readonly qkL2Norm?: boolean;
  readonly allowNegEigval?: boolean;
  readonly saveIntermediates?: boolean;
}

export interface KdaTwins {
  readonly tensors: Readonly<Record<string, Twin>>;
  readonly options: Omit<KdaForwardOptions, 'initialState' | 'gate'>;
  readonly lowerBound?: number;
}

/** Normal operands with states before and after; β from logits. */
export function drawKdaTwins(pool: Pool, shape: KdaShape): KdaTwins {
  const { B = 1, T, heads: [H, HV], dims: [K, V], cuSeqlens, dtype = 'bfloat16', gateDtype = 'float32' } = shape; // prettier-ignore
  const { gate = 'bounded', decay = (value: number) => -Math.abs(value), stateLayout = 'kv', qkL2Norm = true } = shape;
  const sequences = cuSeqlens ? cuSeqlens.length - 1 : B;
  const state = () => pool.twin([sequences, HV, ...(stateLayout === 'vk' ? [V, K] : [K, V])], 'float32');
  // Keys of norm about 1 where they are not normalised: larger ones make the recurrence itself grow without bound.
  const rows = () => pool.twin([B, T, H, K], dtype, qkL2Norm ? undefined : (value) => value / Math.sqrt(K));
  return {
    tensors: {
      ...{ q: rows(), k: rows(), v: pool.twin([B, T, HV, V], dtype) },
      g: pool.twin([B, T, HV, K], gateDtype, gate === 'given' ? decay : undefined),
      ...{ beta: pool.twin([B, T, HV], gateDtype), dOut: pool.twin([B, T, HV, V], dtype) },
      ...{ initialState: state(), dFinalState: state() },
      ...(gate !== 'given' && {
        aLog: pool.twin([HV], 'float32', (value) => value / 2),
        dtBias: pool.twin([HV, K], 'float32'),
      }),
    },
    options: {
      ...{ qkL2Norm, betaLogits: true, allowNegEigval: shape.allowNegEigval ?? false, stateLayout },
      ...(cuSeqlens && { cuSeqlens }),
      saveIntermediates: shape.saveIntermediates ?? false,
    },
    ...(gate === 'bounded' && { lowerBound: -5 }),
  };
}

interface Call {
  readonly forward: KdaForwardResult;
  readonly tensors: Readonly<Record<string, Tensor>>;
}

function callForward({ tensors, options, lowerBound }: KdaTwins, side: keyof Twin, stream?: Stream): Call {
  const own = Object.fromEntries(Object.entries(tensors).map(([name, twin]) => [name, twin[side]]));
  const { q, k, v, g, beta, initialState, aLog, dtBias } = own as Record<string, Tensor>;
  const forward = kdaForward(q, k, v, g, beta, {
    ...{ ...options, initialState, outputFinalState: true },
    ...(aLog && { gate: { aLog, dtBias, ...(lowerBound !== undefined && { lowerBound }) } }),
    ...(stream && { stream }),
  });
  return { forward, tensors: own };
}

/** out and the final state; they are the caller's. */
export function runKdaForwardTwins(twins: KdaTwins, side: keyof Twin): Record<string, Tensor> {
  const { saved, ...outputs } = callForward(twins, side).forward;
  saved.dispose();
  return { ...outputs };
}

/** Forward and backward on one of the devices, each on a stream; the results are the caller's. */
export function runKdaTwins(
  twins: KdaTwins,
  side: keyof Twin,
  first?: Stream,
  second?: Stream,
): Record<string, Tensor> {
  const { forward, tensors } = callForward(twins, side, first);
  const { saved, ...outputs } = forward;
  const { dOut, dFinalState } = tensors;
  const gradients = kdaBackward(dOut, saved, { dFinalState, ...(second && { stream: second }) });
  saved.dispose();
  return { ...outputs, ...gradients };
}

/** What both devices give. */
export async function compareKdaTwins(twins: KdaTwins): Promise<Record<keyof Twin, KdaResults>> {
  const read = async (side: keyof Twin) => (await readValues(runKdaTwins(twins, side))) as KdaResults;
  return { gpu: await read('gpu'), cpu: await read('cpu') };
}

/** The case as the other tests know it. */
export async function caseOfTwins({ tensors, options, lowerBound }: KdaTwins): Promise<KdaCase> {
  const values = Object.fromEntries(
    await Promise.all(Object.entries(tensors).map(async ([name, { cpu }]) => [name, await valuesOf(cpu)] as const)),
  );
  const { q, k, v, g, beta, dOut, initialState, dFinalState, aLog, dtBias } = values;
  const { saveIntermediates: _, ...rest } = options;
  return {
    title: '',
    inputs: { q, k, v, g, beta },
    ...{ dOut, dFinalState },
    options: {
      ...{ ...(rest as KdaCase['options']), initialState },
      ...(aLog && { gate: { aLog, dtBias, ...(lowerBound !== undefined && { lowerBound }) } }),
    },
  };
}

export function disposeKdaTwins({ tensors }: KdaTwins): void {
  for (const { gpu, cpu } of Object.values(tensors)) [gpu, cpu].forEach((tensor) => tensor.dispose());
}
