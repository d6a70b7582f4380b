import { attentionCase } from './attentionCase';
import { type CheckCase } from './checkCase';
import { kdaCase } from './kdaCase';

/** Every option of both operations, alone and together. */
export const CHECK_CASES: readonly CheckCase[] = [
  attentionCase('full', {}),
  attentionCase('causal', { causal: true }),
  attentionCase('window', { window: [9, 4] }),
  attentionCase('causal window', { causal: true, window: [16, Infinity] }),
  attentionCase('more keys than queries', { causal: true }, { rowsQ: 33, rowsK: 70 }),
  attentionCase('more queries than keys', { causal: true }, { rowsQ: 70, rowsK: 33 }),
  attentionCase('scale', { softmaxScale: 0.5 }),
  attentionCase('softcap', { softcap: 2, causal: true }),
  attentionCase('sink', { causal: true }, { sink: true }),
  attentionCase('grouped heads', {}, { heads: 4, kvHeads: 2 }),
  attentionCase('values of another size', {}, { dim: 40, valueDim: 17 }),
  attentionCase('head dimension 128', { causal: true }, { dim: 128 }),
  attentionCase('deterministic', { deterministic: true }, { heads: 4, kvHeads: 2 }),
  attentionCase(
    'packed sequences',
    { causal: true, cuSeqlensQ: [0, 33, 33, 70], cuSeqlensK: [0, 40, 45, 70] },
    { rowsQ: 70, rowsK: 70 },
  ),
  attentionCase(
    'everything',
    { causal: true, window: [20, 0], softcap: 5, cuSeqlensQ: [0, 33, 70], cuSeqlensK: [0, 20, 70] },
    { rowsQ: 70, heads: 4, kvHeads: 2, dim: 32, valueDim: 24, sink: true },
  ),
  kdaCase('plain', {}),
  kdaCase('recomputed intermediates', { saveIntermediates: false }),
  kdaCase('saved intermediates', { saveIntermediates: true }),
  kdaCase('scale', { scale: 0.5 }),
  kdaCase('L2 norm', { qkL2Norm: true }),
  kdaCase('softplus gate', {}, { with: ['aLog', 'dtBias'] }),
  kdaCase('bounded gate', { lowerBound: -5 }, { with: ['aLog', 'dtBias'] }),
  kdaCase('bounded gate without A', { lowerBound: -5 }, { with: ['dtBias'] }),
  kdaCase('beta from logits', { betaLogits: true }),
  kdaCase('negative eigenvalues', { betaLogits: true, allowNegEigval: true, qkL2Norm: true }),
  kdaCase('grouped value heads', {}, { heads: 2, valueHeads: 4 }),
  kdaCase('keys and values of other sizes', {}, { keyDim: 40, valueDim: 17 }),
  kdaCase('head dimension 128', { qkL2Norm: true }, { heads: 1, keyDim: 128 }),
  kdaCase('strong decay', {}, { decay: 20 }),
  kdaCase('states', {}, { with: ['initialState', 'finalState'] }),
  kdaCase('states, values first', { stateLayout: 'vk' }, { with: ['initialState', 'finalState'], valueDim: 17 }),
  kdaCase('packed sequences', { cuSeqlens: [0, 65, 65, 100] }, { tokens: 100, with: ['initialState', 'finalState'] }),
  kdaCase(
    'everything',
    { qkL2Norm: true, betaLogits: true, lowerBound: -5, scale: 0.3, cuSeqlens: [0, 20, 100] },
    { tokens: 100, valueHeads: 4, keyDim: 32, with: ['aLog', 'dtBias', 'initialState', 'finalState'] },
  ),
];
