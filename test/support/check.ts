import type { Device } from '../../lib';
import { attentionReference, roundedAttentionCase, type AttentionCase } from './attentionCases';
import { failuresOf } from './compare';
import type { Operand } from './dtypes';
import { kdaReference, roundedKdaCase, type KdaCase } from './kdaCases';
import { runAttention, runKda, type AttentionResults, type KdaResults, type KdaRun } from './run';
import { attentionNaturals, kdaNaturals, kdaTolerance, randomTolerance } from './tolerance';

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
  const actual = await runKda(item, run);
  const expected = kdaReference(item);
  const naturals: Partial<Record<keyof KdaResults, number>> = kdaNaturals(item);
  return failuresOf(actual, expected, (name) => kdaTolerance(run.dtype, name, expected[name]!, naturals));
}
