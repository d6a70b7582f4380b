import { attentionBackward, attentionForward, kdaBackward, kdaForward, type Device, type Tensor } from '../index';
import { attentionBackwardReference, attentionForwardReference } from '../reference/attention';
import { type Float64Tensor } from '../reference/float64';
import { kdaBackwardReference, kdaForwardReference } from '../reference/kda';
import { type FloatDType, type Tensors, type Verdict, arithmeticOf, download, judge, upload } from './precision';
import { Random } from './random';

export type Operation = 'attention' | 'kda';
export type Pass = 'forward' | 'backward';

/** One operation at one shape and dtype, with its tensors in place. */
export interface BenchRun {
  readonly operation: Operation;
  readonly label: string;
  readonly dtype: FloatDType;
  /** Floating-point operations of a call. */
  readonly flops: Readonly<Record<Pass, number>>;
  /** Enqueues a call and returns what it made. */
  readonly call: Readonly<Record<Pass, () => Tensor[]>>;
  /** Compares the beginning of the results of these passes, which by causality needs only the beginning of the inputs. */
  verify(passes: readonly Pass[]): Promise<Verdict[]>;
  dispose(): void;
}

export interface Shape {
  readonly tokens: number;
  readonly heads: number;
  readonly dim: number;
}

type NamedTensors = Readonly<Record<string, Tensor>>;

const SEED = 20250607;
/** What `verify` looks at: this many tokens of the first head. */
const VERIFIED_TOKENS = 128;

/** The first tokens of the first head of [B, T, H, ...] tensors. */
async function beginnings(tensors: NamedTensors): Promise<Tensors> {
  const beginning = async (tensor: Tensor): Promise<Float64Tensor> => {
    using tokens = tensor.slice(1, 0, Math.min(VERIFIED_TOKENS, tensor.shape[1]));
    using part = tokens.slice(2, 0, 1);
    return download(part);
  };
  const entries = Object.entries(tensors).map(async ([name, tensor]) => [name, await beginning(tensor)] as const);
  return Object.fromEntries(await Promise.all(entries));
}

function disposeAll(tensors: NamedTensors | object): void {
  for (const tensor of Object.values(tensors as NamedTensors)) tensor.dispose();
}

/** The verdicts on `out` of the forward and `dq` of the backward, whichever are asked for. */
async function verify(
  passes: readonly Pass[],
  calls: { forward: () => { out: Tensor }; backward: () => { dq: Tensor } },
  inputs: NamedTensors,
  results: (inputs: Tensors) => Tensors,
  dtype: FloatDType,
): Promise<Verdict[]> {
  const gradients = passes.includes('backward') ? calls.backward() : undefined;
  const checked = { ...(passes.includes('forward') && calls.forward()), ...(gradients && { dq: gradients.dq }) };
  const actual = await beginnings(checked);
  if (gradients) disposeAll(gradients);
  const verdicts = judge(actual, await beginnings(inputs), { results }, dtype, new Random(SEED));
  return verdicts.filter(({ what }) => what in actual);
}

/** Causal attention of one sequence. */
function attentionRun({ tokens, heads, dim }: Shape, dtype: FloatDType, device: Device): BenchRun {
  const shape = [1, tokens, heads, dim];
  const random = new Random(SEED);
  const [q, k, v, dOut] = Array.from({ length: 4 }, () => upload(random.tensor(shape), dtype, device));
  const options = { causal: true };
  const { out, lse } = attentionForward(q, k, v, options);
  const backward = () => attentionBackward(dOut, q, k, v, out, lse, options);
  const results = (inputs: Tensors): Tensors => ({
    out: attentionForwardReference(inputs['q'], inputs['k'], inputs['v'], options).out,
    dq: attentionBackwardReference(inputs['dOut'], inputs['q'], inputs['k'], inputs['v'], options).dq,
  });
  // 2·D for the score and 2·Dv for the weighted sum of each visible pair; the backward has five such products for two.
  const flops = heads * ((tokens * (tokens + 1)) / 2) * 4 * dim;
  return {
    operation: 'attention',
    label: `${shape.join('×')} causal`,
    dtype,
    flops: { forward: flops, backward: 2.5 * flops },
    call: {
      forward: () => Object.values(attentionForward(q, k, v, options)) as Tensor[],
      backward: () => Object.values(backward()) as Tensor[],
    },
    verify: (passes) => verify(passes, { forward: () => ({ out }), backward }, { q, k, v, dOut }, results, dtype),
    dispose: () => disposeAll({ q, k, v, dOut, out, lse }),
  };
}

const KDA_CHUNK = 64;

/** As counted in native/backends/cpu/kda/README.md, a token and value head; triangular products count half. */
function kdaFlops(K: number, V: number): Readonly<Record<Pass, number>> {
  const C = KDA_CHUNK;
  return { forward: 2 * C * K + 2 * C * V + 6 * K * V, backward: 6 * C * K + 4 * C * V + 12 * K * V };
}

/** KDA of one sequence with normalised keys, as a layer calls it. */
function kdaRun({ tokens, heads, dim }: Shape, dtype: FloatDType, device: Device): BenchRun {
  const shape = [1, tokens, heads, dim];
  const random = new Random(SEED);
  const [q, k, v, dOut] = Array.from({ length: 4 }, () => upload(random.tensor(shape), dtype, device));
  const g = upload(
    random.tensor(shape, () => 0.3 * Math.log(random.uniform() + 1e-3)),
    'float32',
    device,
  );
  const beta = upload(
    random.tensor(shape.slice(0, 3), () => random.uniform()),
    'float32',
    device,
  );
  const options = { qkL2Norm: true };
  const { out, saved } = kdaForward(q, k, v, g, beta, { ...options, saveIntermediates: true });
  const backward = () => kdaBackward(dOut, saved);
  const results = (inputs: Tensors): Tensors => ({
    out: kdaForwardReference(inputs as never, options).out,
    dq: kdaBackwardReference(inputs['dOut'], inputs as never, options).dq,
  });
  const perToken = kdaFlops(dim, dim);
  const arithmetic = arithmeticOf('kda', dtype, device);
  return {
    operation: 'kda',
    label: shape.join('×'),
    dtype,
    flops: { forward: tokens * heads * perToken.forward, backward: tokens * heads * perToken.backward },
    call: {
      forward: () => {
        const result = kdaForward(q, k, v, g, beta, options);
        result.saved.dispose();
        return [result.out];
      },
      backward: () => Object.values(backward()) as Tensor[],
    },
    verify: (passes) =>
      verify(passes, { forward: () => ({ out }), backward }, { q, k, v, g, beta, dOut }, results, arithmetic),
    dispose: () => {
      saved.dispose();
      disposeAll({ q, k, v, g, beta, dOut, out });
    },
  };
}

/** A run of an operation at a shape. */
export function makeRun(operation: Operation, shape: Shape, dtype: FloatDType, device: Device): BenchRun {
  return (operation === 'attention' ? attentionRun : kdaRun)(shape, dtype, device);
}

/** The head dimensions whose rate is measured. */
export const BENCH_DIMS: Readonly<Record<Operation, readonly number[]>> = { attention: [64, 128], kda: [128] };

/** So small that the call itself is what takes time. */
export const TINY: Shape = { tokens: 1, heads: 1, dim: 8 };
