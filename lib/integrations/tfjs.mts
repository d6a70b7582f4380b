export { attention, kda, kdaWithState } from './tfjs.js';
export type { Placement, TfjsAttentionOptions, TfjsKdaGate, TfjsKdaOptions } from './tfjs.js';
