/** The state of a training run, one step of it, and its loss on held-out text. */
import * as tf from '@tensorflow/tfjs-core';
import { updateParameters, zeroMoments } from './adamw';
import type { Arrays, Moments } from './adamw';
import { DEFAULT_CONFIG, forward, initialise, multiHot, parameterShapes } from './model';
import type { ModelConfig } from './model';
import { crossEntropy } from './operations';
import type { Placements } from './placement';
import { Random } from './random';
import { randomWindows, windowsAt } from './text';
import type { Text, Windows } from './text';

export const CONTEXT = 256;
const BATCH = 2;
export const TOKENS_PER_STEP = BATCH * CONTEXT;

export interface CurvePoint {
  readonly step: number;
  readonly loss: number;
}

/** Everything that a run needs to go on exactly as if it had not stopped. */
export interface RunState {
  readonly config: ModelConfig;
  readonly seed: number;
  /** Steps done. */
  step: number;
  readonly parameters: Arrays;
  readonly moments: Moments;
  /** Draws the batches. */
  readonly random: Random;
  readonly trainCurve: CurvePoint[];
  readonly validationCurve: CurvePoint[];
}

export function newRun(text: Text, seed: number): RunState {
  const config = { vocabulary: text.alphabet.length, ...DEFAULT_CONFIG };
  const parameters = initialise(config, Random.fromSeed(seed, 1));
  return {
    ...{ config, seed, step: 0, parameters, moments: zeroMoments(parameters) },
    ...{ random: Random.fromSeed(seed, 2), trainCurve: [], validationCurve: [] },
  };
}

export class Trainer {
  readonly state: RunState;
  readonly placements: Placements;
  readonly #text: Text;
  readonly #shapes: Record<string, number[]>;
  readonly #variables: Record<string, tf.Variable> = {};

  constructor(state: RunState, text: Text, placements: Placements) {
    this.state = state;
    this.placements = placements;
    this.#text = text;
    this.#shapes = parameterShapes(state.config);
    for (const [name, shape] of Object.entries(this.#shapes)) {
      this.#variables[name] = tf.tidy(() => tf.variable(tf.tensor(state.parameters[name], shape)));
    }
  }

  get parameterCount(): number {
    return Object.values(this.state.parameters).reduce((sum, { length }) => sum + length, 0);
  }

  get variables(): Readonly<Record<string, tf.Variable>> {
    return this.#variables;
  }

  /** Trains on one batch and returns its loss before the update. */
  trainStep(): number {
    const { state } = this;
    const windows = randomWindows(this.#text.train, BATCH, CONTEXT, state.random);
    const gradients: Record<string, Float32Array> = {};
    const loss = tf.tidy(() => {
      const { value, grads } = tf.variableGrads(this.#loss(windows), Object.values(this.#variables));
      for (const [name, { name: key }] of Object.entries(this.#variables)) {
        gradients[name] = grads[key].dataSync<'float32'>();
      }
      return value.dataSync()[0];
    });
    // The parameters of the gate and the sink are no weights of a product, and do not decay.
    const decays = (name: string) => !/\.(aLog|dtBias|sink)$/.test(name);
    updateParameters(state.parameters, state.moments, gradients, state.step, decays);
    tf.tidy(() => {
      for (const [name, variable] of Object.entries(this.#variables)) {
        variable.assign(tf.tensor(state.parameters[name], this.#shapes[name]));
      }
    });
    state.trainCurve.push({ step: ++state.step, loss });
    return loss;
  }

  /** Mean loss in nats over windows of the validation split, spread evenly over it; all that fit unless told how many. */
  validate(limit = Infinity): number {
    const { validation } = this.#text;
    const length = Math.min(CONTEXT, validation.length - 1);
    const available = Math.floor((validation.length - 1) / length);
    const count = Math.min(limit, available);
    let sum = 0;
    for (let first = 0; first < count; first += BATCH) {
      const batch = Math.min(BATCH, count - first);
      const starts = Array.from({ length: batch }, (_, i) => Math.floor(((first + i) * available) / count) * length);
      sum += batch * tf.tidy(() => this.#loss(windowsAt(validation, starts, length))().dataSync()[0]);
    }
    return sum / count;
  }

  /** The loss as a function of the variables; the constants are made here, so that they outlive the tape. */
  #loss({ inputs, targets }: Windows): () => tf.Scalar {
    const { config } = this.state;
    const hot = multiHot(inputs, config);
    const oneHot = multiHot(targets, { ...config, lookback: 1 });
    return () => crossEntropy(forward(this.#variables, config, hot, inputs.length, this.placements).logits, oneHot);
  }
}
