/** The generator sfc32: small, seeded, and with a state that a checkpoint can keep. */
export class Random {
  #state: [number, number, number, number];

  constructor(state: readonly number[]) {
    const [a = 0, b = 0, c = 0, counter = 0] = state;
    this.#state = [a | 0, b | 0, c | 0, counter | 0];
  }

  /** `purpose` separates generators of one seed. */
  static fromSeed(seed: number, purpose: number): Random {
    const random = new Random([seed, Math.floor(seed / 2 ** 32), purpose, 1]);
    for (let i = 0; i < 16; i++) random.uint32();
    return random;
  }

  get state(): readonly number[] {
    return this.#state;
  }

  uint32(): number {
    const [a, b, c, counter] = this.#state;
    const result = (a + b + counter) | 0;
    this.#state = [b ^ (b >>> 9), (c + (c << 3)) | 0, (((c << 21) | (c >>> 11)) + result) | 0, (counter + 1) | 0];
    return result >>> 0;
  }

  /** In [0, 1). */
  uniform(): number {
    return this.uint32() / 2 ** 32;
  }

  /** An integer in [0, bound). */
  below(bound: number): number {
    return Math.floor(this.uniform() * bound);
  }

  /** Standard normal, by Box and Muller. */
  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }
}
