import { type GpuMeasurements, type GpuRateRow } from './benchGpu';
import { overheadTable, percent } from './benchReport';
import { barChart } from './chart';
import { type Pages } from './pages';
import { formatMarkdown, formatTable } from './table';

interface GpuBenchReport extends GpuMeasurements {
  readonly operation: string;
  readonly commit: string | null;
}

const HEADER = ['operation', 'shape', 'dtype', 'ms', 'spread', 'TFLOP/s'];

function cells(row: GpuRateRow): string[] {
  return [
    ...[`${row.operation} ${row.pass}`, row.shape, row.dtype],
    ...[row.milliseconds.toFixed(3), percent(row.spread), row.tflops.toFixed(0)],
  ];
}

function about({ versions, gpu, date, commit }: GpuBenchReport): string {
  return (
    `warpgrad ${versions.warpgrad}${commit ? ` (${commit.slice(0, 10)})` : ''} on ${gpu}; CUDA ${versions.cuda}, ` +
    `Node ${versions.node}, ${versions.platform}; ${date.slice(0, 10)}.`
  );
}

/** A report of a GPU in each form. */
export function gpuPages(report: GpuBenchReport): Pages {
  const rates = report.rows.map(cells);
  const [header, overhead] = overheadTable(report.callOverhead);
  const refused = report.refusals.map((reason) => `not on ${report.device}: ${reason}\n`).join('');
  const bars = report.rows.map((row) => ({
    label: `${row.operation} ${row.pass}, ${row.shape}, ${row.dtype}`,
    value: row.tflops,
    note: `${row.tflops.toFixed(0)} TFLOP/s`,
  }));
  return {
    json: `${JSON.stringify(report, null, 2)}\n`,
    terminal: `${about(report)}\n\n${formatTable(HEADER, rates)}\n\n${formatTable(header, overhead)}\n${refused}`,
    markdown: `${about(report)}

Median of interleaved rounds of bursts; the spread is the distance between the quartiles over the median.

${formatMarkdown(HEADER, rates)}

A call from JavaScript on tiny shapes, with validation and allocation, until it returns:

${formatMarkdown(header, overhead)}
`,
    chart: barChart(`TFLOP/s: ${report.gpu}`, bars),
  };
}
