import type { Pool } from './cuda';
import { caseOfTwins, compareKdaTwins, disposeKdaTwins, drawKdaTwins, type KdaShape } from './kdaTwins';
import { kdaNaturalsByCpu } from './kdaTolerance';

/** Results of a shape on the GPU and on the CPU, and the sizes that tolerances come from. */
export async function compareKdaShape(pool: Pool, shape: KdaShape) {
  const twins = drawKdaTwins(pool, shape);
  const { gpu, cpu } = await compareKdaTwins(twins);
  const naturals = await kdaNaturalsByCpu(await caseOfTwins(twins));
  disposeKdaTwins(twins);
  return { gpu, cpu, naturals };
}

export function titleOfKdaShape({
  B = 1,
  T,
  heads: [H, HV],
  dims,
  gate,
  cuSeqlens,
  dtype,
  gateDtype,
  ...rest
}: KdaShape): string {
  const flags = Object.entries(rest).filter(([, value]) => value !== undefined && typeof value !== 'function');
  const words = [gate, dtype, gateDtype && `gates ${gateDtype}`, ...flags.map(([name, value]) => `${name} ${value}`)];
  const sequences = cuSeqlens ? ` in ${cuSeqlens.length - 1} sequences` : '';
  return `[${B}, ${T}${sequences}, ${H}/${HV}, ${dims.join('/')}] ${words.filter(Boolean).join(', ')}`;
}
