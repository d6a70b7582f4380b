import { WarpgradError, type Device, type Tensor } from '../index';
import { resolveDevice } from '../device';
import { type CheckCase } from './checkCase';
import { CHECK_CASES } from './checkCases';
import { type Command } from './command';
import { parseDevice, parseOptions } from './options';
import { type FloatDType, type Tensors, type Verdict, arithmeticOf, download, judge, upload } from './precision';
import { Progress } from './progress';
import { Random } from './random';
import { formatTable } from './table';

const USAGE = `Usage: warpgrad check [--device D] [--json]

Compares every operation and option, forward and backward, with a float64 reference on this machine.
What the device can't do yet is listed with the reason. Ends with status 1 if a result is further off than the precision
explains, or if the device can do nothing.

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
/** The dtypes of operands that each kind of device takes. */
const DTYPES: Readonly<Record<'cpu' | 'gpu', readonly FloatDType[]>> = {
  cpu: ['float32', 'float16', 'bfloat16'],
  gpu: ['float16', 'bfloat16'],
};

/** What `runChecks` found. */
export interface Findings {
  readonly rows: readonly CheckRow[];
  /** Why the device refused calls, each reason once. */
  readonly refusals: readonly string[];
}

/** The result of a call, or nothing where the device refuses it; the reason is kept. */
export function unlessRefused<Result>(refusals: Set<string>, call: () => Result): Result | undefined {
  try {
    return call();
  } catch (error) {
    if (!(error instanceof WarpgradError && error.code === 'ERR_WARPGRAD_UNSUPPORTED')) throw error;
    refusals.add(error.message);
    return undefined;
  }
}

/** The inputs of a case on a device. */
export function placeInputs(
  item: CheckCase,
  dtype: FloatDType,
  device: Device,
  random: Random,
): Readonly<Record<string, Tensor>> {
  const drawn = Object.entries(item.draw(random));
  return Object.fromEntries(
    drawn.map(([name, values]) => [name, upload(values, item.float32.includes(name) ? 'float32' : dtype, device)]),
  );
}

async function runCase(item: CheckCase, dtype: FloatDType, device: Device, refusals: Set<string>): Promise<CheckRow[]> {
  const random = new Random(SEED);
  const tensors = placeInputs(item, dtype, device, random);
  const run = unlessRefused(refusals, () => item.run(tensors));
  const gradients = run && unlessRefused(refusals, () => run.backward());
  const results = { ...run?.outputs, ...gradients };
  const inputs = await downloadAll(tensors);
  const arithmetic = arithmeticOf(item.operation, dtype, device);
  const verdicts = run ? judge(await downloadAll(results), inputs, item.reference, arithmetic, random) : [];
  for (const tensor of [...Object.values(tensors), ...Object.values(results)]) tensor.dispose();
  return verdicts
    .filter(({ what }) => gradients !== undefined || what in results)
    .map((verdict) => ({ operation: item.operation, case: item.name, dtype, ...verdict }));
}

async function downloadAll(tensors: Readonly<Record<string, Tensor>>): Promise<Tensors> {
  const entries = Object.entries(tensors).map(async ([name, tensor]) => [name, await download(tensor)] as const);
  return Object.fromEntries(await Promise.all(entries));
}

/** Runs the cases that `select` picks, each in every dtype that it picks. */
export async function runChecks(
  device: Device,
  select: (item: CheckCase, dtype: FloatDType) => boolean,
): Promise<Findings> {
  const dtypes = DTYPES[device === 'cpu' ? 'cpu' : 'gpu'];
  const runs = CHECK_CASES.flatMap((item) => dtypes.map((dtype) => ({ item, dtype }))).filter(({ item, dtype }) =>
    select(item, dtype),
  );
  const progress = new Progress(runs.length);
  const rows: CheckRow[] = [];
  const refusals = new Set<string>();
  try {
    for (const { item, dtype } of runs) {
      progress.label(`check ${item.operation}, ${item.name}, ${dtype}`);
      rows.push(...(await runCase(item, dtype, device, refusals)));
      progress.step();
    }
  } finally {
    progress.stop();
  }
  return { rows, refusals: [...refusals] };
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

function report(device: Device, { rows, refusals }: Findings): string {
  const failed = rows.filter(({ ok }) => !ok).length;
  const table = formatTable(
    ['operation', 'case', 'dtype', 'what', 'error', 'allowed', 'ok'],
    worth(rows).map(({ operation, case: name, dtype, what, error, allowed, ok }) => [
      ...[operation, name, dtype, what, error.toExponential(1), allowed.toExponential(1), ok ? 'yes' : 'NO'],
    ]),
  );
  const verdict =
    failed === 0 ? 'all within what the precision explains' : `${failed} beyond what the precision explains`;
  const refused = refusals.map((reason) => `not on ${device}: ${reason}\n`).join('');
  return `${table}\n\n${refused}${device}: ${rows.length} results, ${verdict}. Of each case the worst result is shown.\n`;
}

export const command: Command = {
  usage: USAGE,
  async run(args) {
    const options = parseOptions(args, {
      device: { type: 'string', default: 'auto' },
      json: { type: 'boolean', default: false },
    });
    const device = resolveDevice('--device', parseDevice(options.device));
    const findings = await runChecks(device, () => true);
    const ok = findings.rows.length > 0 && findings.rows.every((row) => row.ok);
    const json = () => `${JSON.stringify({ device, ok, ...findings }, null, 2)}\n`;
    process.stdout.write(options.json ? json() : report(device, findings));
    return ok ? 0 : 1;
  },
};
