import { type Tensor } from '../index';
import { type Reference, type Tensors } from './precision';
import { type Random } from './random';

/** An operation with options, forward and backward, on inputs of its own. */
export interface CheckCase {
  readonly operation: 'attention' | 'kda';
  readonly name: string;
  /** Inputs named here are float32 whatever the dtype of the case. */
  readonly float32: readonly string[];
  draw(random: Random): Tensors;
  readonly reference: Reference;
  run(inputs: Readonly<Record<string, Tensor>>): CheckRun;
}

/** What the forward gave, and the backward to be called. */
export interface CheckRun {
  readonly outputs: Readonly<Record<string, Tensor>>;
  backward(): Readonly<Record<string, Tensor>>;
}
