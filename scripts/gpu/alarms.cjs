'use strict';
// What a tool of compute-sanitizer reported, without what is known to be a false alarm. Anything else is for a person to see.

/**
 * Known false alarms, by tool: the kernels, and the first line.
 * @type {Record<string, { kernel: RegExp, text: RegExp }>}
 */
const FALSE_ALARMS = {
  // It does not see what the copy engine writes: of a bulk store only where it begins, of a tensor store nothing. It
  // judges bulk loads by where they begin. So it reports the loads of matrices that other kernels store in bulk: records,
  // scores, E, and states and their gradients. With plain stores in the place of the bulk stores it reports nothing. A plain
  // load has at most 16 bytes.
  initcheck: {
    kernel: /\bkda_(recurrence|reverse|gradients|wide_gradients|scores)_kernel\b/,
    text: /^Uninitialized __global__ memory read of size [\d,]{3,} bytes$/,
  },
};

/** The tool's reports, line by line, and how many it counted, or null where it came to no end. @param {string} output */
function parse(output) {
  const blocks = output
    .split(/^========= ?$/m)
    .map((block) => [...block.matchAll(/^========= +(.*)$/gm)].map(([, line]) => line))
    .map((lines) => lines.filter((line) => line !== 'COMPUTE-SANITIZER'))
    .filter((lines) => lines.length > 0);
  const summary = /^(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed .*)$/;
  const found = blocks.flatMap(([first]) => summary.exec(first) ?? []);
  const counted = found.length > 0 ? Number(found[1] ?? found[2]) : null;
  return { reports: blocks.filter(([first]) => !summary.test(first)), counted };
}

/** @param {string} tool @param {string} output */
function judge(tool, output) {
  const { reports, counted } = parse(output);
  const alarm = FALSE_ALARMS[tool];
  const unexpected = reports.filter(([first, where = '']) => !alarm?.text.test(first) || !alarm.kernel.test(where));
  // A tool that leaves out reports, or that watched nothing, must not look clean.
  return { unexpected, falseAlarms: reports.length - unexpected.length, complete: counted === reports.length };
}

module.exports = { judge };
