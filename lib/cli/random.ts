import { float64, type Float64Tensor } from '../reference/float64';

/** Seeded random numbers (mulberry32): the same cases on every machine. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** Uniform in [0, 1). */
  uniform(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Standard normal. */
  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }

  /** A tensor of `draw()`s. */
  tensor(shape: readonly number[], draw: () => number = () => this.normal()): Float64Tensor {
    const size = shape.reduce((product, extent) => product * extent, 1);
    return float64(Float64Array.from({ length: size }, draw), shape);
  }
}
