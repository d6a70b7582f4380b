import type { Placement, TfjsAttentionOptions } from 'warpgrad/tfjs';

/** Where and in which precision the model's two warpgrad operations run. */
export interface Placements {
  readonly attention: Placement & Pick<TfjsAttentionOptions, 'deterministic'>;
  readonly kda: Placement;
  /** The same in words. */
  readonly summary: string;
}

/** A GPU takes attention in 16 bits, in the mode that repeats bit for bit. KDA has no GPU kernel yet and stays on the CPU. */
export function placementsOn(device: string): Placements {
  if (device === 'cpu') return { attention: { device }, kda: { device }, summary: 'on cpu' };
  return {
    attention: { device: device as Placement['device'], dtype: 'bfloat16', deterministic: true },
    kda: { device: 'cpu' },
    summary: `attention on ${device} in bfloat16, KDA (which has no GPU kernel yet) on cpu`,
  };
}
