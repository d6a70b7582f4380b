/** What a command's module exports as `command`. */
export interface Command {
  readonly usage: string;
  /** Writes the result to the standard output and returns the exit status. */
  run(args: readonly string[]): Promise<number>;
}
