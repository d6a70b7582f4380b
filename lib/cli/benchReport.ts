import { type OverheadRow, type RateRow } from './benchRun';
import { barChart } from './chart';
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

const percent = (share: number) => `${(100 * share).toFixed(0)} %`;

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

/** For the terminal. */
export function terminal(report: BenchReport): string {
  const rates = formatTable(RATE_HEADER, report.rows.map(rateCells));
  const overhead = formatTable(OVERHEAD_HEADER, report.callOverhead.map(overheadCells));
  return `${about(report)}\nMicro-kernel, GFLOP/s: ${peaks(report)}\n\n${rates}\n\n${overhead}\n`;
}

/** For the documentation. */
export function markdown(report: BenchReport): string {
  return `${about(report)}

Median of interleaved rounds; the spread is the distance between the quartiles over the median. Rates of the matrix
micro-kernel on operands in the first-level cache, GFLOP/s: ${peaks(report)}.

${formatMarkdown(RATE_HEADER, report.rows.map(rateCells))}

A call from JavaScript on tiny shapes, with validation and allocation, until it returns:

${formatMarkdown(OVERHEAD_HEADER, report.callOverhead.map(overheadCells))}
`;
}

/** Rates in front of the micro-kernel's, as SVG. */
export function chart(report: BenchReport): string {
  const bars = report.rows.map((row) => ({
    label: `${row.operation} ${row.pass}, ${row.shape}, ${row.dtype}, ${row.threads} thr.`,
    value: row.gflops,
    most: row.microKernelGflops,
    note: `${row.gflops.toFixed(0)} GFLOP/s, ${percent(row.share)}`,
  }));
  return barChart(`GFLOP/s, and of the matrix micro-kernel (grey): ${report.processor}`, bars);
}
