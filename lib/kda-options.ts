import type { Stream } from './stream';
import type { Tensor } from './tensor';

/** How the log decay comes from the `g` operand x: softplus with `aLog`, bounded with `lowerBound`. */
export interface KdaGate {
  /** float32 [HV]. g = -exp(aLog)·softplus(x + dtBias), or the slope of the bounded gate (default there: 0). */
  aLog?: Tensor | undefined;
  /** float32 [HV, K] or [HV·K]. Default: 0. */
  dtBias?: Tensor | undefined;
  /** Below 0: g = lowerBound·sigmoid(exp(aLog)·(x + dtBias)). */
  lowerBound?: number | undefined;
}

export interface KdaForwardOptions {
  /** Factor of the output. Default: K^-1/2. */
  scale?: number | undefined;
  /** State before the first token of each sequence: float32 [N, HV, K, V]. Default: 0. */
  initialState?: Tensor | undefined;
  /** Give the state after the last token too. */
  outputFinalState?: boolean | undefined;
  /** Give the states before every 64th token of each sequence too, from its first on. */
  outputChunkStates?: boolean | undefined;
  /** Offsets of packed sequences, [N + 1] starting at 0; B is 1 then. */
  cuSeqlens?: readonly number[] | Int32Array | Tensor | undefined;
  /** Normalise q and k over K first: x / sqrt(Σx² + 1e-6). */
  qkL2Norm?: boolean | undefined;
  /** Compute the log decay from `g`. Default: `g` is the log decay, <= 0. */
  gate?: KdaGate | undefined;
  /** `beta` holds logits: β = sigmoid(beta). */
  betaLogits?: boolean | undefined;
  /** With betaLogits: β = 2·sigmoid(beta). */
  allowNegEigval?: boolean | undefined;
  /** Layout of states: 'kv' is [N, HV, K, V], 'vk' is [N, HV, V, K]. Default: 'kv'. */
  stateLayout?: 'kv' | 'vk' | undefined;
  /** Bits of results don't depend on what else is in the call; else they may on a GPU, for long sequences of few heads. */
  batchInvariant?: boolean | undefined;
  /** Keep what the backward would otherwise compute again: faster and larger. */
  saveIntermediates?: boolean | undefined;
  /** Stream to run on. Default: the current one of the device. */
  stream?: Stream | undefined;
}

export interface KdaBackwardOptions {
  /** Gradient of the loss with respect to the final state, in its layout: float32. Default: 0. */
  dFinalState?: Tensor | undefined;
  /** Stream to run on. Default: the current one of the device. */
  stream?: Stream | undefined;
}
