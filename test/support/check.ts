import type { Device } from '../../lib';
import { attentionReference, roundedAttentionCase, type AttentionCase } from './attentionCases';
import { failuresOf } from './compare';
import type { Operand } from './dtypes';
import { kdaReference, roundedKdaCase, type KdaCase } from './kdaCases';
import { runAttention, runKda, type AttentionResults, type KdaResults, type KdaRun } from './run';
import { kdaNaturals, kdaNaturalsByCpu, kdaTolerance, kdaToleranceOnGpu, type KdaNaturals } from './kdaTolerance';
import { attentionNaturals, randomTolerance } from './tolerance';

/** What is wrong with the library's forward and backward of a case, against the float64 reference on the rounded inputs. */
export async function attentionFailures(
  drawn: AttentionCase,
  dtype: Operand,
  device: Device = 'cpu',
  deterministic = false,
): Promise<string[]> {
  const item = roundedAttentionCase(drawn, dtype);
  const actual = await runAttention(item, dtype, device, deterministic);
  const expected = attentionReference(item);
  const naturals: Partial<Record<keyof AttentionResults, number>> = attentionNaturals(item, dtype);
  return failuresOf(actual, expected, (name) =>
    randomTolerance(name === 'lse' ? 'float32' : dtype, expected[name]!, naturals[name]),
  );
}

/** The same for KDA. */
export async function kdaFailures(drawn: KdaCase, run: KdaRun): Promise<string[]> {
  const item = roundedKdaCase(drawn, run.dtype, run.gateDtype);
  return failuresBeside(await runKda(item, run), kdaReference(item), kdaNaturals(item), run);
}

/** The same beside the CPU in float32, which its own tests compare with the reference: where that would be slow. */
export async function kdaFailuresBesideCpu(drawn: KdaCase, run: KdaRun): Promise<string[]> {
  const item = roundedKdaCase(drawn, run.dtype, run.gateDtype);
  const expected = await runKda(item, { dtype: 'float32' });
  return failuresBeside(await runKda(item, run), expected, await kdaNaturalsByCpu(item), run);
}

function failuresBeside(
  actual: KdaResults,
  expected: Partial<KdaResults>,
  naturals: KdaNaturals,
  { dtype, device = 'cpu' }: KdaRun,
): string[] {
  return failuresOf(actual, expected, (name) =>
    device === 'cpu'
      ? kdaTolerance(dtype, name, expected[name]!, naturals)
      : kdaToleranceOnGpu(name, expected[name]!, naturals),
  );
}
