/** The loss curve, as SVG and PNG. */
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { Resvg } from '@resvg/resvg-js';
import type { TopLevelSpec } from 'vega-lite' with { 'resolution-mode': 'import' };
import type { Baselines } from './baselines';
import type { CurvePoint } from './trainer';

const FONT = 'DejaVu Sans';
const COLOURS = { training: '#7fb2dd', heldOut: '#17477e', baseline: '#b5532a' };
/** Steps to either side in the mean that is drawn over the training losses. */
const SMOOTHING = 10;

export interface Curves {
  readonly title: string;
  readonly subtitle: string;
  readonly train: readonly CurvePoint[];
  readonly validation: readonly CurvePoint[];
  readonly baselines: Baselines;
}

/** Writes `loss.svg` and `loss.png` into `folder`. */
export async function writeChart(folder: string, curves: Curves): Promise<void> {
  // These two are ES modules only.
  const [vega, { compile }] = await Promise.all([import('vega'), import('vega-lite')]);
  const view = new vega.View(vega.parse(compile(specification(curves)).spec), { renderer: 'none' });
  const svg = await view.toSVG();
  view.finalize();
  writeFileSync(path.join(folder, 'loss.svg'), svg);
  // The font comes with a package, because a server may have none.
  const fontFiles = ['DejaVuSans.ttf', 'DejaVuSans-Bold.ttf'].map((name) =>
    require.resolve(`dejavu-fonts-ttf/ttf/${name}`),
  );
  const font = { fontFiles, loadSystemFonts: false, defaultFontFamily: FONT };
  writeFileSync(
    path.join(folder, 'loss.png'),
    new Resvg(svg, { fitTo: { mode: 'zoom', value: 2 }, font }).render().asPng(),
  );
}

function specification({ title, subtitle, train, validation, baselines }: Curves): TopLevelSpec {
  const rules = [
    { loss: baselines.unigram, label: `unigram model ${baselines.unigram.toFixed(2)}` },
    { loss: baselines.bigram, label: `bigram model ${baselines.bigram.toFixed(2)}` },
  ];
  const quantity = 'quantitative' as const;
  const scale = { domain: [0, train.at(-1)?.step ?? 1], nice: false };
  const x = { field: 'step', type: quantity, title: 'step', scale, axis: { grid: false } };
  const y = { field: 'loss', type: quantity, title: 'cross-entropy, nats a byte', scale: { zero: true } };
  const series = (name: string) => ({
    datum: name,
    scale: { domain: ['training', 'held-out'], range: [COLOURS.training, COLOURS.heldOut] },
    legend: {
      title: null,
      orient: 'top-right' as const,
      offset: 8,
      symbolType: 'stroke',
      symbolStrokeWidth: 3,
      symbolOpacity: 1,
    },
  });
  return {
    ...{ width: 720, height: 400, padding: 16, background: 'white' },
    title: { text: title, subtitle, anchor: 'start', offset: 14 },
    layer: [
      {
        data: { values: [...train] },
        mark: { type: 'line', strokeWidth: 1, opacity: 0.3 },
        encoding: { x, y, color: series('training') },
      },
      {
        data: { values: [...train] },
        transform: [{ window: [{ op: 'mean', field: 'loss', as: 'mean' }], frame: [-SMOOTHING, SMOOTHING] }],
        mark: { type: 'line', strokeWidth: 2 },
        encoding: { x, y: { ...y, field: 'mean' }, color: series('training') },
      },
      {
        data: { values: [...validation] },
        mark: { type: 'line', strokeWidth: 2.4, point: { size: 40 } },
        encoding: { x, y, color: series('held-out') },
      },
      {
        data: { values: rules },
        mark: { type: 'rule', strokeDash: [6, 4], color: COLOURS.baseline, strokeWidth: 1.4 },
        encoding: { y },
      },
      {
        data: { values: rules },
        mark: { type: 'text', align: 'right', dx: -6, dy: -8, color: COLOURS.baseline, fontSize: 12 },
        encoding: { x: { value: 'width' }, y, text: { field: 'label' } },
      },
    ],
    config: {
      font: FONT,
      title: { fontSize: 17, subtitleFontSize: 12.5, subtitleColor: '#555', subtitlePadding: 5 },
      axis: {
        labelFontSize: 12,
        titleFontSize: 12.5,
        titleFontWeight: 'normal',
        gridColor: '#eee',
        domainColor: '#999',
      },
      legend: { labelFontSize: 12 },
      view: { stroke: null },
    },
  };
}
