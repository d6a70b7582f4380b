/** The middle of a few measurements, and how far they disagree. */
export interface Summary {
  readonly middle: number;
  /** Distance between the quartiles over the median. */
  readonly spread: number;
}

/** The value below which a share of the sorted values lies, between neighbours by their distance. */
function quantile(sorted: readonly number[], share: number): number {
  const at = share * (sorted.length - 1);
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

/** Median and spread of at least one value. */
export function summarize(values: readonly number[]): Summary {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = quantile(sorted, 0.5);
  return { middle, spread: (quantile(sorted, 0.75) - quantile(sorted, 0.25)) / middle };
}

/** Milliseconds a call, over as many calls as `least` milliseconds take. */
export async function time(call: () => Promise<void>, least: number): Promise<number> {
  const start = performance.now();
  let calls = 0;
  let elapsed: number;
  do {
    await call();
    calls++;
    elapsed = performance.now() - start;
  } while (elapsed < least);
  return elapsed / calls;
}
