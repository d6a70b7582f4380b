import { Stream, type Device, type Tensor } from '../index';
import { attentionCase } from './attentionCase';
import { placeInputs, unlessRefused } from './check';
import { kdaCase } from './kdaCase';
import { Random } from './random';

/** What a device runs. */
export interface DeviceOperations {
  readonly runs: readonly string[];
  /** Why it refuses the others, each reason once. */
  readonly refusals: readonly string[];
}

const CASES = [attentionCase('tiny', {}, { rowsQ: 8, dim: 8 }), kdaCase('tiny', {}, { tokens: 8, keyDim: 8 })];

/** Calls each operation on tiny operands of a dtype that every device takes. */
export async function operationsOn(device: Device): Promise<DeviceOperations> {
  const runs: string[] = [];
  const refusals = new Set<string>();
  for (const item of CASES) {
    const inputs = placeInputs(item, 'bfloat16', device, new Random(0));
    const run = unlessRefused(refusals, () => item.run(inputs));
    if (run) runs.push(`${item.operation}Forward`);
    const gradients = run && unlessRefused(refusals, () => run.backward());
    if (gradients) runs.push(`${item.operation}Backward`);
    const made: Readonly<Record<string, Tensor>> = { ...inputs, ...run?.outputs, ...gradients };
    for (const tensor of Object.values(made)) tensor.dispose();
  }
  await Stream.current(device).synchronize();
  return { runs, refusals: [...refusals] };
}
