import { type OverheadRow, type RateRow } from './benchRun';
import { barChart } from './chart';
import { type Pages } from './pages';
import { formatMarkdown, formatTable } from './table';

/** What `warpgrad bench --json` prints. */
export interface BenchReport {
  readonly operation: string;
  readonly device: string;
  readonly processor: string;
  readonly instructionSet: string;
  readonly date: string;
  readonly versions: { readonly warpgrad: string; readonly node: string; readonly platform: string };
  /** Of the checkout that it ran in; null where the package is installed. */
  readonly commit: string | null;
  readonly rows: readonly RateRow[];
  readonly callOverhead: readonly OverheadRow[];
}

const RATE_HEADER = [
  ...['operation', 'shape', 'dtype', 'threads', 'ms', 'spread'],
  ...['GFLOP/s', 'of micro-kernel', '× one thread', '× float32'],
];
const OVERHEAD_HEADER = ['call', 'shape', 'µs', 'spread'];

export const percent = (share: number) => `${(100 * share).toFixed(0)} %`;

function rateCells(row: RateRow): string[] {
  return [
    ...[`${row.operation} ${row.pass}`, row.shape, row.dtype, String(row.threads)],
    ...[row.milliseconds.toFixed(2), percent(row.spread), row.gflops.toFixed(1), percent(row.share)],
    ...[row.scaling.toFixed(2), row.versusFloat32.toFixed(2)],
  ];
}

function overheadCells(row: OverheadRow): string[] {
  return [`${row.operation} ${row.pass}`, row.shape, row.microseconds.toFixed(1), percent(row.spread)];
}

/** The table of what calls cost. */
export function overheadTable(rows: readonly OverheadRow[]): [header: string[], cells: string[][]] {
  return [OVERHEAD_HEADER, rows.map(overheadCells)];
}

/** The rates of the micro-kernel, each once. */
function peaks(report: BenchReport): string {
  const named = report.rows.map(
    ({ dtype, threads, microKernelGflops }) =>
      `${dtype} with ${threads} thread${threads === 1 ? '' : 's'} ${microKernelGflops.toFixed(0)}`,
  );
  return [...new Set(named)].join(', ');
}

function about(report: BenchReport): string {
  const { versions, processor, instructionSet, date, commit } = report;
  return (
    `warpgrad ${versions.warpgrad}${commit ? ` (${commit.slice(0, 10)})` : ''} on ${processor}, ${instructionSet}; ` +
    `Node ${versions.node}, ${versions.platform}; ${date.slice(0, 10)}.`
  );
}

/** A report of the CPU in each form. */
export function cpuPages(report: BenchReport): Pages {
  const rates = report.rows.map(rateCells);
  const [header, overhead] = overheadTable(report.callOverhead);
  const bars = report.rows.map((row) => ({
    label: `${row.operation} ${row.pass}, ${row.shape}, ${row.dtype}, ${row.threads} thr.`,
    value: row.gflops,
    most: row.microKernelGflops,
    note: `${row.gflops.toFixed(0)} GFLOP/s, ${percent(row.share)}`,
  }));
  return {
    json: `${JSON.stringify(report, null, 2)}\n`,
    terminal: `${about(report)}
Micro-kernel, GFLOP/s: ${peaks(report)}

${formatTable(RATE_HEADER, rates)}

${formatTable(header, overhead)}
`,
    markdown: `${about(report)}

Median of interleaved rounds; the spread is the distance between the quartiles over the median. Rates of the matrix
micro-kernel on operands in the first-level cache, GFLOP/s: ${peaks(report)}.

${formatMarkdown(RATE_HEADER, rates)}

A call from JavaScript on tiny shapes, with validation and allocation, until it returns:

${formatMarkdown(header, overhead)}
`,
    chart: barChart(`GFLOP/s, and of the matrix micro-kernel (grey): ${report.processor}`, bars),
  };
}
