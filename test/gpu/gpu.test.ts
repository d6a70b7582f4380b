import { systemInfo, type Device } from '../../lib';
import { failuresOf } from '../support/compare';
import {
  attentionCaseOf,
  bfloat16Tolerance,
  GOLDEN_ATTENTION_RESULTS,
  GOLDEN_KDA_RESULTS,
  goldenNames,
  kdaCaseOf,
  loadGolden,
  type GoldenCase,
} from '../support/golden';
import { runAttention, runKda } from '../support/run';
import type { Float64Tensor } from '../../lib/reference/float64';

// The golden cases on the first usable GPU, with bfloat16 operands. Expected values and tolerances: test/golden.

const { devices, reason } = systemInfo().cuda;
const gpu = devices.find(({ usable }) => usable);
const device: Device = `cuda:${gpu?.index ?? 0}`;
const describeOnGpu = gpu ? describe : describe.skip;
const title = gpu ? `on ${gpu.name}` : `skipped, no usable GPU: ${reason}`;

/** What is wrong with the results that the golden case has. */
function failures(golden: GoldenCase, results: Record<string, Float64Tensor>, names: Record<string, string>): string[] {
  const expected = Object.fromEntries(
    Object.entries(names).flatMap(([name, tensor]) => (golden.tensors[tensor] ? [[name, golden.tensors[tensor]]] : [])),
  );
  const actual = Object.fromEntries(Object.entries(results).filter(([name]) => name in expected));
  return failuresOf(actual, expected, (name) => bfloat16Tolerance(golden, names[name]));
}

describeOnGpu(`attention, golden cases in bfloat16 (${title})`, () => {
  test.each(goldenNames('attention'))('%s', async (name) => {
    const golden = loadGolden(name);
    const results = await runAttention(attentionCaseOf(golden), 'bfloat16', device);
    expect(failures(golden, results, GOLDEN_ATTENTION_RESULTS)).toEqual([]);
  });
});

describeOnGpu(`KDA, golden cases in bfloat16 (${title})`, () => {
  test.each([...goldenNames('kda'), ...goldenNames('kdaChained')])('%s', async (name) => {
    const golden = loadGolden(name);
    const results = await runKda(kdaCaseOf(golden), { dtype: 'bfloat16', device });
    expect(failures(golden, results, GOLDEN_KDA_RESULTS)).toEqual([]);
  });
});
