/** AdamW: Adam with weight decay apart from the gradient, after clipping the gradient's norm. */

export const HYPERPARAMETERS = {
  peakRate: 6e-3,
  finalRate: 2e-4,
  warmupSteps: 30,
  /** The rate falls along a cosine up to this step and stays there, so it depends on the step alone and not on the end. */
  decaySteps: 800,
  beta1: 0.9,
  beta2: 0.97,
  epsilon: 1e-8,
  weightDecay: 0.05,
  maxNorm: 1,
} as const;

export type Arrays = Readonly<Record<string, Float32Array>>;

export interface Moments {
  readonly first: Arrays;
  readonly second: Arrays;
}

export function zeroMoments(parameters: Arrays): Moments {
  const zeros = () =>
    Object.fromEntries(Object.entries(parameters).map(([name, { length }]) => [name, new Float32Array(length)]));
  return { first: zeros(), second: zeros() };
}

/** The learning rate of a step, counted from zero. */
export function learningRate(step: number): number {
  const { peakRate, finalRate, warmupSteps, decaySteps } = HYPERPARAMETERS;
  if (step < warmupSteps) return (peakRate * (step + 1)) / warmupSteps;
  const progress = Math.min((step - warmupSteps) / (decaySteps - warmupSteps), 1);
  return finalRate + ((peakRate - finalRate) * (1 + Math.cos(Math.PI * progress))) / 2;
}

/** Updates parameters and moments in place. Only those that `decays` names decay. */
export function updateParameters(
  parameters: Arrays,
  moments: Moments,
  gradients: Arrays,
  step: number,
  decays: (name: string) => boolean,
): void {
  const { beta1, beta2, epsilon, weightDecay, maxNorm } = HYPERPARAMETERS;
  const rate = learningRate(step);
  const clip = Math.min(1, maxNorm / (norm(gradients) + 1e-12));
  const correction1 = 1 - beta1 ** (step + 1);
  const correction2 = 1 - beta2 ** (step + 1);
  for (const [name, values] of Object.entries(parameters)) {
    const [first, second, gradient] = [moments.first[name], moments.second[name], gradients[name]];
    const keep = decays(name) ? 1 - rate * weightDecay : 1;
    for (let i = 0; i < values.length; i++) {
      const g = gradient[i] * clip;
      const m = (first[i] = beta1 * first[i] + (1 - beta1) * g);
      const v = (second[i] = beta2 * second[i] + (1 - beta2) * g * g);
      values[i] = values[i] * keep - (rate * (m / correction1)) / (Math.sqrt(v / correction2) + epsilon);
    }
  }
}

function norm(gradients: Arrays): number {
  let sum = 0;
  for (const gradient of Object.values(gradients)) {
    for (let i = 0; i < gradient.length; i++) sum += gradient[i] * gradient[i];
  }
  return Math.sqrt(sum);
}
