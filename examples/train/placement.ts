import type { Placement, TfjsAttentionOptions } from 'warpgrad/tfjs';

/** Where and in which precision the model's two warpgrad operations run. */
export interface Placements {
  readonly attention: Placement & Pick<TfjsAttentionOptions, 'deterministic'>;
  readonly kda: Placement;
  /** The same in words. */
  readonly summary: string;
}

/** A GPU takes both in 16 bits; KDA always repeats bit for bit, attention in its deterministic mode. */
export function placementsOn(device: string): Placements {
  if (device === 'cpu') return { attention: { device }, kda: { device }, summary: 'on cpu' };
  const kda = { device: device as Placement['device'], dtype: 'bfloat16' } as const;
  return { attention: { ...kda, deterministic: true }, kda, summary: `on ${device} in bfloat16` };
}
