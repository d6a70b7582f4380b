/** Text from the trained model, one byte at a time, each read on from the layers' memory. */
import * as tf from '@tensorflow/tfjs-core';
import { emptyMemory, forward, multiHot } from './model';
import type { Memory } from './model';
import { Random } from './random';
import type { Trainer } from './trainer';

const TEMPERATURE = 0.7;

/** Continues `prompt` by `count` tokens; the prompt is not part of the result. */
export function sample({ state, variables, placements }: Trainer, prompt: Uint8Array, count: number): number[] {
  const { config, seed } = state;
  const random = Random.fromSeed(seed, 3);
  const tokens = [...prompt];
  let memory: Memory = emptyMemory(config);
  let unread = tokens.length;
  while (tokens.length < prompt.length + count) {
    const next = tf.tidy(() => {
      const start = Math.max(0, tokens.length - unread - (config.lookback - 1));
      const window = tokens.slice(start);
      const hot = multiHot([window], config, window.length - unread);
      const result = forward(variables, config, hot, 1, placements, memory);
      const last = tf.slice(result.logits, [unread - 1, 0], [1, config.vocabulary]);
      return { logits: last, memory: result.memory! };
    });
    tokens.push(draw(next.logits.dataSync<'float32'>(), random));
    tf.dispose([next.logits, memory.state, memory.keys, memory.values]);
    memory = next.memory;
    unread = 1;
  }
  tf.dispose([memory.state, memory.keys, memory.values]);
  return tokens.slice(prompt.length);
}

function draw(logits: Float32Array, random: Random): number {
  const max = Math.max(...logits);
  const weights = Array.from(logits, (logit) => Math.exp((logit - max) / TEMPERATURE));
  let rest = random.uniform() * weights.reduce((sum, weight) => sum + weight, 0);
  return Math.max(
    0,
    weights.findIndex((weight) => (rest -= weight) < 0),
  );
}
