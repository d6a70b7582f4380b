/// <reference lib="esnext.disposable" preserve="true" />
/**
 * Attention and Kimi Delta Attention as differentiable operations of TensorFlow.js.
 *
 * Needs the optional peer dependency `@tensorflow/tfjs-core`, any backend of it. Inputs and results are float32 tensors of
 * TensorFlow.js; `dtype` and `device` say what the operation itself runs in and on.
 */
import type * as tf from '@tensorflow/tfjs-core';
import { ATTENTION_OPTIONS, attentionBackward, attentionForward } from '../attention';
import type { AttentionOptions } from '../attention';
import type { DeviceOption } from '../device';
import { GATE_OPTIONS, KDA_OPTIONS, kdaBackward, kdaForward } from '../kda';
import type { KdaForwardOptions } from '../kda';
import { type Tensor } from '../tensor';
import { expectKnownOptions, flagOption } from '../validate';
import { differentiable } from './tfjsOperation';
import type { Inputs, OperationDType, Recorded } from './tfjsOperation';

/** Where an operation runs, and in which type. */
export interface Placement {
  /** Default: 'auto', the GPU if one is usable, else the CPU. */
  device?: DeviceOption | undefined;
  /** The type of q, k, v and the result inside the operation. Default: float32 on the CPU, bfloat16 on a GPU. */
  dtype?: OperationDType | undefined;
}

const PLACEMENT_OPTIONS = ['device', 'dtype'];
const KDA_CURES = new Map([['outputFinalState', 'kdaWithState gives the final state']]);

/** Options of {@link attention}: those of `attentionForward`, with the sink as a tensor of TensorFlow.js. */
export interface TfjsAttentionOptions extends Omit<AttentionOptions, 'sink' | 'stream'>, Placement {
  /** One logit a query head, [H]. It gets a gradient. */
  sink?: tf.Tensor | undefined;
  /** Bitwise equal gradients from run to run on a GPU too. */
  deterministic?: boolean | undefined;
}

/** The gate of {@link kda}; `{}` with `aLog` is the softplus gate, with `lowerBound` the bounded one. */
export interface TfjsKdaGate {
  /** [HV]. It gets a gradient. */
  aLog?: tf.Tensor | undefined;
  /** [HV, K] or [HV * K]. It gets a gradient. */
  dtBias?: tf.Tensor | undefined;
  lowerBound?: number | undefined;
}

/** Options of {@link kda}: those of `kdaForward`, with the initial state and the gate's parameters as tensors of TensorFlow.js. */
export interface TfjsKdaOptions
  extends
    Omit<KdaForwardOptions, 'initialState' | 'outputFinalState' | 'outputChunkStates' | 'gate' | 'stream'>,
    Placement {
  /** [N, HV, K, V], or [N, HV, V, K] with `stateLayout: 'vk'`. It gets a gradient. */
  initialState?: tf.Tensor | undefined;
  gate?: TfjsKdaGate | undefined;
}

/**
 * Attention: q [B, Sq, H, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv] → [B, Sq, H, Dv]. Gradients for q, k, v and `sink`.
 */
export function attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, options: TfjsAttentionOptions = {}): tf.Tensor {
  expectKnownOptions('attention', options, [...ATTENTION_OPTIONS, 'deterministic', ...PLACEMENT_OPTIONS]);
  const { sink, device, dtype, deterministic, ...rest } = options;
  flagOption('attention', 'deterministic', deterministic); // otherwise the backward pass would be the first to look
  const inputs = { q, k, v, ...(sink !== undefined && { sink }) };
  const record = (tensors: Inputs<Tensor>): Recorded => {
    const forwardOptions = { ...rest, ...(tensors['sink'] && { sink: tensors['sink'] }) };
    const [q, k, v] = [tensors['q'], tensors['k'], tensors['v']];
    const { out, lse } = attentionForward(q, k, v, forwardOptions);
    return {
      outputs: [out],
      held: [...Object.values(tensors), out, lse],
      backward: ([dOut]) => {
        const backwardOptions = deterministic === undefined ? forwardOptions : { ...forwardOptions, deterministic };
        const { dq, dk, dv, dSink } = attentionBackward(dOut, q, k, v, out, lse, backwardOptions);
        return { q: dq, k: dk, v: dv, ...(dSink && { sink: dSink }) };
      },
    };
  };
  return differentiable('attention', inputs, { device, dtype }, record)[0];
}

/**
 * Kimi Delta Attention: q, k [B, T, H, K], v [B, T, HV, V], g [B, T, HV, K], beta [B, T, HV] → [B, T, HV, V].
 * Gradients for all of them, `initialState`, `gate.aLog` and `gate.dtBias`.
 */
export function kda(
  q: tf.Tensor,
  k: tf.Tensor,
  v: tf.Tensor,
  g: tf.Tensor,
  beta: tf.Tensor,
  options: TfjsKdaOptions = {},
): tf.Tensor {
  return runKda('kda', { q, k, v, g, beta }, options, false)[0];
}

/** {@link kda} that also returns the state after the last token, float32, through which gradients flow as well. */
export function kdaWithState(
  q: tf.Tensor,
  k: tf.Tensor,
  v: tf.Tensor,
  g: tf.Tensor,
  beta: tf.Tensor,
  options: TfjsKdaOptions = {},
): { out: tf.Tensor; finalState: tf.Tensor } {
  const [out, finalState] = runKda('kdaWithState', { q, k, v, g, beta }, options, true);
  return { out: out, finalState: finalState };
}

function runKda(name: string, operands: Inputs<tf.Tensor>, options: TfjsKdaOptions, outputFinalState: boolean) {
  expectKnownOptions(name, options, [...KDA_OPTIONS, ...PLACEMENT_OPTIONS], KDA_CURES);
  const { initialState, gate, device, dtype, ...rest } = options;
  if (gate !== undefined) expectKnownOptions(`${name}: gate`, gate, GATE_OPTIONS);
  const { aLog, dtBias, ...gateRest } = gate ?? {};
  const inputs = {
    ...operands,
    ...(initialState !== undefined && { initialState }),
    ...(aLog !== undefined && { aLog }),
    ...(dtBias !== undefined && { dtBias }),
  };
  const record = (tensors: Inputs<Tensor>): Recorded => {
    const { q, k, v, g, beta, initialState, ...gateTensors } = tensors;
    const { out, finalState, saved } = kdaForward(q, k, v, g, beta, {
      ...rest,
      ...(initialState && { initialState }),
      ...(gate && { gate: { ...gateRest, ...gateTensors } }),
      outputFinalState,
    });
    return {
      outputs: finalState ? [out, finalState] : [out],
      held: [...Object.values(tensors), out, ...(finalState ? [finalState] : []), saved],
      backward: ([dOut, dFinalState]) => {
        const grads = kdaBackward(dOut, saved, dFinalState ? { dFinalState } : {});
        const { dq, dk, dv, dg, dbeta, dInitialState, dALog, dDtBias } = grads;
        return {
          ...{ q: dq, k: dk, v: dv, g: dg, beta: dbeta },
          ...(dInitialState && { initialState: dInitialState }),
          ...(dALog && { aLog: dALog }),
          ...(dDtBias && { dtBias: dDtBias }),
        };
      },
    };
  };
  return differentiable(name, inputs, { device, dtype }, record);
}
