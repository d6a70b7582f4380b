import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AttentionReferenceOptions } from '../../lib/reference/attention';
import type { Float64Tensor } from '../../lib/reference/float64';
import type { KdaReferenceOptions } from '../../lib/reference/kda';
import type { AttentionCase } from './attentionCases';
import { maxAbs, type Tolerance } from './compare';
import type { KdaCase } from './kdaCases';
import { readSafetensors } from './safetensors';

// The float64 data of test/golden; FORMAT.md there says what each tensor, option and tolerance is.

const FOLDER = join(__dirname, '../golden');

type Simulated = Record<string, readonly [rmsRatio: number | null, maxRatio: number | null, maxAbs: number]>;

interface IndexEntry {
  readonly name: string;
  readonly op: 'attention' | 'kda';
  readonly file: string;
  readonly options: Record<string, unknown>;
  readonly stats: { readonly natural?: Record<string, number> };
  readonly sim: { readonly bf16: Simulated; readonly fp32: Simulated };
}

export interface GoldenCase extends IndexEntry {
  readonly tensors: Record<string, Float64Tensor>;
}

/** The names of all cases of an operation, chained KDA cases apart. */
export function goldenNames(kind: 'attention' | 'kda' | 'kdaChained'): string[] {
  return index()
    .filter(({ op, options }) => (op === 'kda' && options.chained ? 'kdaChained' : op) === kind)
    .map(({ name }) => name);
}

export function loadGolden(name: string): GoldenCase {
  const entry = index().find((candidate) => candidate.name === name)!;
  return { ...entry, tensors: readSafetensors(join(FOLDER, entry.file)).tensors };
}

interface AttentionJson {
  readonly causal: boolean;
  readonly windowSize: readonly [number, number];
  readonly softcap: number;
  readonly softmaxScale: number;
  readonly softmaxScaleIsDefault: boolean;
  readonly cuSeqlensQ?: number[];
  readonly cuSeqlensK?: number[];
}

/** The options of an attention case in the words of `attentionForward`. */
export function goldenAttentionOptions({ options, tensors }: GoldenCase): AttentionReferenceOptions {
  const json = options as unknown as AttentionJson;
  const [left, right] = json.windowSize.map((keys) => (keys < 0 ? Infinity : keys)) as [number, number];
  return {
    causal: json.causal,
    ...((left < Infinity || right < Infinity) && { window: [left, right] as const }),
    ...(json.softcap > 0 && { softcap: json.softcap }),
    ...(!json.softmaxScaleIsDefault && { softmaxScale: json.softmaxScale }),
    ...(tensors.sink && { sink: tensors.sink }),
    ...(json.cuSeqlensQ && { cuSeqlensQ: json.cuSeqlensQ, cuSeqlensK: json.cuSeqlensK! }),
  };
}

/** An attention case as the other tests know it. */
export function attentionCaseOf(golden: GoldenCase): AttentionCase {
  const { q, k, v, do: dOut } = golden.tensors as Record<'q' | 'k' | 'v' | 'do', Float64Tensor>;
  return { title: golden.name, inputs: { q, k, v }, dOut, options: goldenAttentionOptions(golden) };
}

interface KdaJson {
  readonly scale: number;
  readonly scaleIsDefault: boolean;
  readonly useQkL2norm: boolean;
  readonly useGateInKernel: boolean;
  readonly lowerBound: number | null;
  readonly useBetaSigmoid: boolean;
  readonly allowNegEigval: boolean;
  readonly cuSeqlens?: number[];
}

/** The options of a KDA case in the words of `kdaForward`. */
export function goldenKdaOptions({ options, tensors }: GoldenCase): KdaReferenceOptions {
  const json = options as unknown as KdaJson;
  const { A_log: aLog, dt_bias: dtBias, initial_state: initialState } = tensors;
  const lowerBound = json.lowerBound ?? undefined;
  return {
    ...(!json.scaleIsDefault && { scale: json.scale }),
    qkL2Norm: json.useQkL2norm,
    ...(json.useGateInKernel && {
      gate: { ...(aLog && { aLog }), ...(dtBias && { dtBias }), ...(lowerBound !== undefined && { lowerBound }) },
    }),
    betaLogits: json.useBetaSigmoid,
    allowNegEigval: json.allowNegEigval,
    ...(initialState && { initialState }),
    ...(json.cuSeqlens && { cuSeqlens: json.cuSeqlens }),
  };
}

/** A KDA case as the other tests know it. */
export function kdaCaseOf(golden: GoldenCase): KdaCase {
  const { q, k, v, g, beta, do: dOut } = golden.tensors as Record<'q' | 'k' | 'v' | 'g' | 'beta' | 'do', Float64Tensor>;
  const { d_final_state: dFinalState } = golden.tensors;
  return {
    title: golden.name,
    inputs: { q, k, v, g, beta },
    dOut,
    ...(dFinalState && { dFinalState }),
    options: goldenKdaOptions(golden),
  };
}

/** Names of the results of KDA in the golden files. */
export const GOLDEN_KDA_RESULTS = {
  ...{ out: 'o', finalState: 'final_state', dq: 'dq', dk: 'dk', dv: 'dv', dg: 'dg', dbeta: 'dbeta' },
  ...{ dInitialState: 'd_initial_state', dALog: 'dA_log', dDtBias: 'ddt_bias' },
} as const;

/** Names of the results of attention in the golden files. */
export const GOLDEN_ATTENTION_RESULTS = {
  ...{ out: 'o', lse: 'lse', dq: 'dq', dk: 'dk', dv: 'dv', dSink: 'dsink' },
} as const;

/** FORMAT.md's tolerance of a float32 backend for one result. */
export function float32Tolerance(golden: GoldenCase, tensor: string): Tolerance {
  const expected = golden.tensors[tensor];
  if (tensor === 'lse') return lseTolerance(expected);
  const natural = golden.stats.natural?.[tensor] ?? 0;
  return { maxAbs: 10 * golden.sim.fp32[tensor][2] + 4e-6 * natural + 1e-6 * maxAbs(expected.data) };
}

const NATURAL_FACTORS: Record<string, number> = { dsink: 5e-4, dg: 4e-3, ddt_bias: 1e-2, dA_log: 2e-2 };

/** FORMAT.md's tolerance of a backend with bfloat16 operands for one result. */
export function bfloat16Tolerance(golden: GoldenCase, tensor: string): Tolerance {
  const expected = golden.tensors[tensor];
  if (tensor === 'lse') return lseTolerance(expected);
  const largest = maxAbs(expected.data);
  const natural = golden.stats.natural?.[tensor] ?? 0;
  const [rmsRatio, , simulated] = golden.sim.bf16[tensor];
  const naturalFactor = NATURAL_FACTORS[tensor] ?? 1e-5;
  const limit = 3 * simulated + naturalFactor * natural + 1e-5 * largest;
  const cancels = tensor in NATURAL_FACTORS || natural > 50 * largest;
  return { maxAbs: limit, ...(!cancels && rmsRatio !== null && { rmsRatio: 2.5 * rmsRatio + 1e-4 }) };
}

function lseTolerance(lse: Float64Tensor): Tolerance {
  return { maxAbs: 1e-4 + 1e-6 * maxAbs(lse.data) };
}

let entries: IndexEntry[] | undefined;

function index(): IndexEntry[] {
  entries ??= (JSON.parse(readFileSync(join(FOLDER, 'index.json'), 'utf8')) as { cases: IndexEntry[] }).cases;
  return entries;
}
