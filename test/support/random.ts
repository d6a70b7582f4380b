import type { Float64Tensor } from '../../lib/reference/float64';

declare const warpgradTestSeed: number; // jest.config.cjs

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { cos, floor, imul, log, sqrt } = Math;

/** A seeded generator (mulberry32): the same label in a run with the same seed gives the same numbers. */
export class Random {
  #state: number;

  constructor(label: string, seed = warpgradTestSeed) {
    this.#state = seed >>> 0;
    for (const char of label) this.#state = imul(this.#state ^ char.codePointAt(0)!, 0x9e3779b1) >>> 0;
  }

  /** In [0, 1). */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = imul(t ^ (t >>> 15), t | 1);
    t ^= t + imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  between(low: number, high: number): number {
    return low + (high - low) * this.uniform();
  }

  /** Of low, low + 1, …, high. */
  integer(low: number, high: number): number {
    return low + floor(this.uniform() * (high - low + 1));
  }

  chance(probability: number): boolean {
    return this.uniform() < probability;
  }

  pick<T>(choices: readonly T[]): T {
    return choices[this.integer(0, choices.length - 1)];
  }

  normal(): number {
    return sqrt(-2 * log(1 - this.uniform())) * cos(2 * Math.PI * this.uniform());
  }

  tensor(shape: readonly number[], draw: () => number = () => this.normal()): Float64Tensor {
    const size = shape.reduce((product, extent) => product * extent, 1);
    const data = new Float64Array(size);
    for (let at = 0; at < size; at++) data[at] = draw();
    return { shape: [...shape], data };
  }

  /** Rows of the last dimension of Euclidean norm between `low` and `high`. */
  rows(shape: readonly number[], low: number, high: number): Float64Tensor {
    const tensor = this.tensor(shape);
    const width = shape.at(-1)!;
    for (let at = 0; at < tensor.data.length; at += width) {
      const row = tensor.data.subarray(at, at + width);
      const factor = this.between(low, high) / Math.hypot(...row);
      row.forEach((value, d) => (row[d] = value * factor));
    }
    return tensor;
  }

  /** Offsets of `count` packed sequences of up to `longest` rows, about a quarter of them empty. */
  cuSeqlens(count: number, longest: number): number[] {
    const offsets = [0];
    for (let n = 0; n < count; n++) {
      offsets.push(offsets[n] + (this.chance(0.25) ? 0 : this.integer(1, longest)));
    }
    return offsets;
  }
}
