import { attentionBackward, attentionForward, type AttentionBackwardOptions } from '../index';
import { attentionBackwardReference, attentionForwardReference } from '../reference/attention';
import { type CheckCase } from './checkCase';

type AttentionCaseOptions = Pick<
  AttentionBackwardOptions,
  'causal' | 'window' | 'softmaxScale' | 'softcap' | 'deterministic'
> & { readonly cuSeqlensQ?: number[]; readonly cuSeqlensK?: number[] };

interface AttentionShape {
  readonly rowsQ?: number;
  readonly rowsK?: number;
  readonly heads?: number;
  readonly kvHeads?: number;
  readonly dim?: number;
  readonly valueDim?: number;
  readonly sink?: boolean;
}

/** Attention with these options. */
export function attentionCase(name: string, options: AttentionCaseOptions, shape: AttentionShape = {}): CheckCase {
  const { rowsQ = 70, rowsK = rowsQ, heads = 2, kvHeads = heads, dim = 24, valueDim = dim, sink = false } = shape;
  const { deterministic, ...forwardOptions } = options;
  const batch = options.cuSeqlensQ ? [] : [2];
  return {
    operation: 'attention',
    name,
    float32: ['sink'],
    draw: (random) => ({
      q: random.tensor([...batch, rowsQ, heads, dim]),
      k: random.tensor([...batch, rowsK, kvHeads, dim]),
      v: random.tensor([...batch, rowsK, kvHeads, valueDim]),
      dOut: random.tensor([...batch, rowsQ, heads, valueDim]),
      ...(sink && { sink: random.tensor([heads]) }),
    }),
    reference: {
      results: ({ q, k, v, dOut, sink: logits }) => {
        const all = { ...forwardOptions, ...(logits && { sink: logits }) };
        return { ...attentionForwardReference(q, k, v, all), ...attentionBackwardReference(dOut, q, k, v, all) };
      },
    },
    run: ({ q, k, v, dOut, sink: logits }) => {
      const all = { ...forwardOptions, ...(logits && { sink: logits }) };
      const { out, lse } = attentionForward(q, k, v, all);
      const backward = () => ({ ...attentionBackward(dOut, q, k, v, out, lse, { ...all, deterministic }) });
      return { outputs: { out, lse }, backward };
    },
  };
}
