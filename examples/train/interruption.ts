/** Ctrl-C: the first one asks the training to stop after its step, the second one ends the program at once. */
const SIGNALS = ['SIGINT', 'SIGTERM'] as const;
/** One Ctrl-C may come twice, from the terminal and from npm. */
const SAME_MILLISECONDS = 500;

export class Interruption {
  #since: number | undefined;

  constructor() {
    for (const signal of SIGNALS) process.on(signal, this.#request);
  }

  get requested(): boolean {
    return this.#since !== undefined;
  }

  /** From now on the signals have their usual effect. */
  end(): void {
    for (const signal of SIGNALS) process.off(signal, this.#request);
  }

  readonly #request = (): void => {
    const now = performance.now();
    if (this.#since === undefined) this.#since = now;
    else if (now - this.#since > SAME_MILLISECONDS) process.exit(130);
  };
}
