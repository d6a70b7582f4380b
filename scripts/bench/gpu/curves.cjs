'use strict';
// Curves of times over the size of a problem, as SVG.

/**
 * @typedef {object} Point
 * @property {string} implementation
 * @property {number} at
 * @property {number} ms
 *
 * @param {string} title @param {string} axis what `at` counts @param {Point[]} points
 * @param {Record<string, string>} colours by implementation @returns {Promise<string>}
 */
async function curves(title, axis, points, colours) {
  // These two are ES modules only.
  const [vega, { compile }] = await Promise.all([import('vega'), import('vega-lite')]);
  const sizes = [...new Set(points.map(({ at }) => at))].sort((a, b) => a - b);
  const { spec } = compile({
    ...{ width: 620, height: 360, padding: 16, background: 'white' },
    title: { text: title, anchor: 'start', offset: 14 },
    data: { values: points },
    mark: { type: 'line', point: { size: 40 }, strokeWidth: 2 },
    encoding: {
      x: { field: 'at', type: 'quantitative', title: axis, scale: { type: 'log', base: 2 }, axis: { values: sizes } },
      y: { field: 'ms', type: 'quantitative', title: 'ms', scale: { type: 'log', nice: true }, axis: { format: '~r' } },
      color: {
        field: 'implementation',
        scale: { domain: Object.keys(colours), range: Object.values(colours) },
        legend: { title: null, orient: 'top-left', labelLimit: 300, symbolType: 'stroke', symbolStrokeWidth: 3 },
      },
    },
  });
  const view = new vega.View(vega.parse(spec), { renderer: 'none' });
  const svg = await view.toSVG();
  view.finalize();
  return `${svg}\n`;
}

module.exports = { curves };
