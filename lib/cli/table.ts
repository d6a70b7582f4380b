/** A column is aligned right when all its cells look like numbers. */
const NUMBER = /^[-+]?[\d.,]+(e[-+]?\d+)?[\s%×]*$/i;

interface Column {
  readonly width: number;
  readonly numeric: boolean;
}

function measure(header: readonly string[], rows: readonly (readonly string[])[]): Column[] {
  return header.map((title, index) => {
    const cells = rows.map((row) => row[index]);
    return {
      width: Math.max(title.length, ...cells.map((cell) => cell.length)),
      numeric: cells.length > 0 && cells.every((cell) => cell === '' || NUMBER.test(cell)),
    };
  });
}

function pad(cells: readonly string[], columns: readonly Column[]): string[] {
  return cells.map((cell, i) => (columns[i].numeric ? cell.padStart(columns[i].width) : cell.padEnd(columns[i].width)));
}

/** Columns for a terminal. */
export function formatTable(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const columns = measure(header, rows);
  const rule = columns.map(({ width }) => '─'.repeat(width));
  return [pad(header, columns), rule, ...rows.map((row) => pad(row, columns))]
    .map((cells) => cells.join('  ').trimEnd())
    .join('\n');
}

/** The same as a Markdown table. */
export function formatMarkdown(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const columns = measure(header, rows);
  const rule = columns.map(({ width, numeric }) => (numeric ? `${'-'.repeat(width - 1)}:` : '-'.repeat(width)));
  return [pad(header, columns), rule, ...rows.map((row) => pad(row, columns))]
    .map((cells) => `| ${cells.join(' | ')} |`)
    .join('\n');
}
