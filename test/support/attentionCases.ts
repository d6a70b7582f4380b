import {
  attentionBackwardReference,
  attentionForwardReference,
  type AttentionReferenceGradients,
  type AttentionReferenceOptions,
  type AttentionReferenceOutputs,
} from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import { rounded, type Operand } from './dtypes';
import type { Random } from './random';

export interface AttentionInputs {
  readonly q: Float64Tensor;
  readonly k: Float64Tensor;
  readonly v: Float64Tensor;
}

export interface AttentionCase {
  readonly title: string;
  readonly inputs: AttentionInputs;
  readonly dOut: Float64Tensor;
  readonly options: AttentionReferenceOptions;
}

/** 'tiny' suits element-by-element differences; 'small' crosses the blocks of the kernels. */
export type CaseSize = 'tiny' | 'small';

const MOST_PRODUCTS = 6e6; // keeps the reference under a tenth of a second
const HEAD_DIMS = [1, 7, 16, 24, 60, 64, 72, 96, 100, 128, 192, 256];

/** Draws shapes and options over everything that attention supports; small cases take their head dimensions from a list. */
export function randomAttentionCase(random: Random, size: CaseSize, headDims = HEAD_DIMS): AttentionCase {
  const tiny = size === 'tiny';
  const drawDim = () => (tiny ? random.integer(1, 6) : random.pick(headDims));
  const headDim = drawDim();
  const valueDim = random.chance(0.6) ? headDim : drawDim();
  const kvHeads = random.integer(1, 2);
  const heads = kvHeads * random.integer(1, 3);
  const batch = random.integer(1, 2);
  const budget = Math.floor(Math.sqrt(MOST_PRODUCTS / (batch * heads * (headDim + valueDim))));
  const longest = tiny ? 7 : Math.min(random.pick([20, 70, 150]), budget);
  const packing = random.chance(0.4) ? drawPacking(random, longest) : undefined;
  const qRows = packing ? [packing.rowsQ] : [batch, random.integer(1, longest)];
  const kRows = packing ? [packing.rowsK] : [batch, random.integer(1, longest)];
  const options = { ...drawAttentionOptions(random, heads, headDim, longest), ...packing?.offsets };
  return {
    title: attentionTitle([...qRows, heads, headDim], [...kRows, kvHeads, valueDim], options),
    inputs: {
      q: random.tensor([...qRows, heads, headDim]),
      k: random.tensor([...kRows, kvHeads, headDim]),
      v: random.tensor([...kRows, kvHeads, valueDim]),
    },
    dOut: random.tensor([...qRows, heads, valueDim]),
    options,
  };
}

/** Normal operands of these shapes, `v` with `valueDim` columns. */
export function drawAttentionCase(
  random: Random,
  q: readonly number[],
  k: readonly number[],
  options: AttentionReferenceOptions,
  valueDim = k.at(-1)!,
): AttentionCase {
  const inputs = { q: random.tensor(q), k: random.tensor(k), v: random.tensor([...k.slice(0, -1), valueDim]) };
  return { title: '', inputs, dOut: random.tensor([...q.slice(0, -1), valueDim]), options };
}

/** The case as a library with 16-bit operands sees it. */
export function roundedAttentionCase(item: AttentionCase, dtype: Operand): AttentionCase {
  const { q, k, v } = item.inputs;
  const inputs = { q: rounded(q, dtype), k: rounded(k, dtype), v: rounded(v, dtype) };
  const { sink } = item.options;
  const options = { ...item.options, ...(sink && { sink: rounded(sink, 'float32') }) };
  return { ...item, inputs, dOut: rounded(item.dOut, dtype), options };
}

/** All results of the float64 reference. */
export function attentionReference(item: AttentionCase): AttentionReferenceOutputs & AttentionReferenceGradients {
  const { q, k, v } = item.inputs;
  return {
    ...attentionForwardReference(q, k, v, item.options),
    ...attentionBackwardReference(item.dOut, q, k, v, item.options),
  };
}

/** sum(out · dOut) of the float64 reference. */
export function attentionLoss({ inputs, options, dOut }: AttentionCase): number {
  const { out } = attentionForwardReference(inputs.q, inputs.k, inputs.v, options);
  return out.data.reduce((sum, value, n) => sum + value * dOut.data[n], 0);
}

/** Each input that has a gradient, with the gradient's name. */
export function attentionInputTensors({
  inputs,
  options,
}: AttentionCase): [input: Float64Tensor, gradient: keyof AttentionReferenceGradients][] {
  const sink: [Float64Tensor, 'dSink'][] = options.sink ? [[options.sink, 'dSink']] : [];
  return [[inputs.q, 'dq'], [inputs.k, 'dk'], [inputs.v, 'dv'], ...sink];
}

function drawPacking(random: Random, longest: number) {
  const count = random.integer(1, 4);
  const offsets = { cuSeqlensQ: random.cuSeqlens(count, longest), cuSeqlensK: random.cuSeqlens(count, longest) };
  const spareRows = () => (random.chance(0.5) ? random.integer(1, 5) : 0); // a buffer longer than its sequences
  const rowsQ = Math.max(1, offsets.cuSeqlensQ.at(-1)! + spareRows());
  const rowsK = Math.max(1, offsets.cuSeqlensK.at(-1)! + spareRows());
  return { offsets, rowsQ, rowsK };
}

function drawAttentionOptions(
  random: Random,
  heads: number,
  headDim: number,
  longest: number,
): AttentionReferenceOptions {
  const side = () => (random.chance(0.3) ? Infinity : random.integer(0, Math.ceil(longest / 2)));
  return {
    ...(random.chance(0.4) && { causal: true }),
    ...(random.chance(0.4) && { window: [side(), side()] as const }),
    ...(random.chance(0.3) && { softmaxScale: random.between(0.3, 3) * headDim ** -0.5 }),
    ...(random.chance(0.3) && { softcap: random.between(1, 20) }),
    ...(random.chance(0.3) && { sink: random.tensor([heads]) }),
  };
}

function attentionTitle(q: readonly number[], v: readonly number[], options: AttentionReferenceOptions): string {
  const { sink, softmaxScale, softcap, causal, window, cuSeqlensQ, cuSeqlensK } = options;
  return [
    `q [${q.join(',')}] v [${v.join(',')}]`,
    causal && 'causal',
    window && `window [${window.join(',')}]`,
    softmaxScale && `scale ${softmaxScale.toPrecision(3)}`,
    softcap && `softcap ${softcap.toPrecision(3)}`,
    sink && 'sink',
    cuSeqlensQ && `cuQ [${String(cuSeqlensQ)}] cuK [${String(cuSeqlensK)}]`,
  ]
    .filter(Boolean)
    .join(' ');
}
