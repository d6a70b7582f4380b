/** A bar of a chart. */
export interface Bar {
  readonly label: string;
  readonly value: number;
  /** What the value could be at most, drawn behind it. */
  readonly most?: number;
  readonly note: string;
  readonly colour?: string;
}

const [ROW, MARGIN, WIDTH, NOTE] = [26, 16, 420, 190];
/** Of a wide font (DejaVu Sans) of this size, in the mean; narrower ones leave room. */
const CHARACTER = 6.6;

function escape(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** Horizontal bars as an SVG document. */
export function barChart(title: string, bars: readonly Bar[]): string {
  const longest = Math.max(...bars.map(({ value, most }) => Math.max(value, most ?? 0)));
  const length = (value: number) => ((value / longest) * WIDTH).toFixed(1);
  const start = MARGIN + Math.ceil(CHARACTER * Math.max(...bars.map(({ label }) => label.length))) + 10;
  const rows = bars.map(({ label, value, most, note, colour }, index) => {
    const y = 44 + index * ROW;
    const bar = (size: number, fill: string) =>
      `  <rect x="${start}" y="${y}" width="${length(size)}" height="16" fill="${fill}"/>`;
    return [
      `  <text x="${start - 10}" y="${y + 12}" text-anchor="end">${escape(label)}</text>`,
      ...(most === undefined ? [] : [bar(most, '#d8dee6')]),
      bar(value, colour ?? '#2f6db3'),
      `  <text x="${start + WIDTH + 10}" y="${y + 12}">${escape(note)}</text>`,
    ].join('\n');
  });
  const [width, height] = [start + WIDTH + NOTE, 56 + bars.length * ROW];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12">`,
    `  <rect width="${width}" height="${height}" fill="#ffffff"/>`,
    `  <text x="${MARGIN}" y="24" font-size="15">${escape(title)}</text>`,
    ...rows,
    '</svg>\n',
  ].join('\n');
}
