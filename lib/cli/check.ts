import { type Device } from '../index';
import { resolveDevice } from '../device';
import { type CheckCase } from './checkCase';
import { CHECK_CASES } from './checkCases';
import { type Command } from './command';
import { parseDevice, parseOptions } from './options';
import { type FloatDType, type Tensors, type Verdict, download, judge, upload } from './precision';
import { Progress } from './progress';
import { Random } from './random';
import { formatTable } from './table';

const USAGE = `Usage: warpgrad check [--device D] [--json]

Compares every operation and option, forward and backward, with a float64 reference on this machine.
Ends with status 1 if a result is further off than the precision explains.

  --device D    cpu, cuda, cuda:N or auto (default: auto)
  --json        all results as JSON
`;

/** One result of one case in one dtype. */
export interface CheckRow extends Verdict {
  readonly operation: CheckCase['operation'];
  readonly case: string;
  readonly dtype: FloatDType;
}

const SEED = 20250607;
const DTYPES: readonly FloatDType[] = ['float32', 'float16', 'bfloat16'];

async function runCase(item: CheckCase, dtype: FloatDType, device: Device): Promise<CheckRow[]> {
  const random = new Random(SEED);
  const drawn = Object.entries(item.draw(random));
  const tensors = Object.fromEntries(
    drawn.map(([name, values]) => [name, upload(values, item.float32.includes(name) ? 'float32' : dtype, device)]),
  );
  const results = item.run(tensors);
  const inputs = await downloadAll(tensors);
  const verdicts = judge(await downloadAll(results), inputs, item.reference, dtype, random);
  for (const tensor of [...Object.values(tensors), ...Object.values(results)]) tensor.dispose();
  return verdicts.map((verdict) => ({ operation: item.operation, case: item.name, dtype, ...verdict }));
}

async function downloadAll(tensors: ReturnType<CheckCase['run']>): Promise<Tensors> {
  const entries = Object.entries(tensors).map(async ([name, tensor]) => [name, await download(tensor)] as const);
  return Object.fromEntries(await Promise.all(entries));
}

/** Runs the cases that `select` picks, each in every dtype that it picks. */
export async function runChecks(
  device: Device,
  select: (item: CheckCase, dtype: FloatDType) => boolean,
): Promise<CheckRow[]> {
  const runs = CHECK_CASES.flatMap((item) => DTYPES.map((dtype) => ({ item, dtype }))).filter(({ item, dtype }) =>
    select(item, dtype),
  );
  const progress = new Progress(runs.length);
  const rows: CheckRow[] = [];
  try {
    for (const { item, dtype } of runs) {
      progress.label(`check ${item.operation}, ${item.name}, ${dtype}`);
      rows.push(...(await runCase(item, dtype, device)));
      progress.step();
    }
  } finally {
    progress.stop();
  }
  return rows;
}

/** Of each case and dtype the result that is nearest to what is allowed, or beyond it; and all that failed. */
function worth(rows: readonly CheckRow[]): CheckRow[] {
  const share = ({ error, allowed }: CheckRow) => (error === 0 ? 0 : error / allowed);
  const worst = new Map<string, CheckRow>();
  for (const row of rows) {
    const key = `${row.operation} ${row.case} ${row.dtype}`;
    const best = worst.get(key);
    if (!best || share(row) > share(best)) worst.set(key, row);
  }
  return rows.filter((row) => !row.ok || [...worst.values()].includes(row));
}

function report(device: Device, rows: readonly CheckRow[]): string {
  const failed = rows.filter(({ ok }) => !ok).length;
  const table = formatTable(
    ['operation', 'case', 'dtype', 'what', 'error', 'allowed', 'ok'],
    worth(rows).map(({ operation, case: name, dtype, what, error, allowed, ok }) => [
      ...[operation, name, dtype, what, error.toExponential(1), allowed.toExponential(1), ok ? 'yes' : 'NO'],
    ]),
  );
  const verdict =
    failed === 0 ? 'all within what the precision explains' : `${failed} beyond what the precision explains`;
  return `${table}\n\n${device}: ${rows.length} results, ${verdict}. Of each case the worst result is shown.\n`;
}

export const command: Command = {
  usage: USAGE,
  async run(args) {
    const options = parseOptions(args, {
      device: { type: 'string', default: 'auto' },
      json: { type: 'boolean', default: false },
    });
    const device = resolveDevice('check', parseDevice(options.device));
    const rows = await runChecks(device, () => true);
    const ok = rows.every((row) => row.ok);
    process.stdout.write(options.json ? `${JSON.stringify({ device, ok, rows }, null, 2)}\n` : report(device, rows));
    return ok ? 0 : 1;
  },
};
