'use strict';
// What a tool of compute-sanitizer reported, without what is known to be a false alarm. Anything else is for a person to see.

/**
 * @typedef {object} Alarm a known false one
 * @property {RegExp} kernel
 * @property {RegExp} text its first line
 * @property {number} [places] in the code of an instance, at most
 */

/** @type {Record<string, Alarm[]>} */
const FALSE_ALARMS = {
  // It does not see what the copy engine writes: of a bulk store only where it begins, of a tensor store nothing. It
  // judges bulk loads by where they begin. So it reports the loads of matrices that other kernels store in bulk: records,
  // T, U and states and their gradients. With plain stores in the place of the bulk stores it reports nothing. A plain
  // load has at most 16 bytes.
  initcheck: [
    {
      kernel: /\bkda_(recurrence|reverse|gradients|wide_gradients|scores)_kernel\b/,
      text: /^Uninitialized __global__ memory read of size [\d,]{3,} bytes$/,
    },
  ],
  // It knows no order of a read before the arrival of another thread at an mbarrier, not even through __syncwarp, and
  // here one lane of a warp arrives for all: it reports the next load into a slot against the reads of the other 31.
  racecheck: [
    { kernel: /\bkda_recurrence_kernel\b/, text: /^Error: Race reported between Write access/, places: 2 }, // U0, decays
    { kernel: /\bkda_gradients_kernel\b/, text: /^Error: Race reported between Write access/, places: 4 }, // S, dS
  ],
};

/** The tool's reports, first lines first, and what it counted, or null where it came to no end. @param {string} output */
function parse(output) {
  const blocks = output
    .split(/^========= ?$/m)
    .map((block) => [...block.matchAll(/^========= +(.*)$/gm)].map(([, line]) => line))
    .map((lines) => lines.filter((line) => line !== 'COMPUTE-SANITIZER'));
  const summary = /^(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed .*)$/;
  const reports = blocks.filter(([first]) => first !== undefined && !summary.test(first));
  const found = blocks.flatMap(([first]) => summary.exec(first ?? '') ?? []);
  return { reports, counted: found.length > 0 ? Number(found[1] ?? found[2]) : null };
}

/** The kernel with its template's arguments, and a place in its code. @param {string[]} report */
function whereOf(report) {
  const [, instance = '', place = ''] = /\bat (?:void )?(\S.*)\+(0x[0-9a-f]+)/.exec(report.join('\n')) ?? [];
  return { instance, place };
}

/** @param {string} tool @param {string} output */
function judge(tool, output) {
  const { reports, counted } = parse(output);
  /** @type {Map<string, Set<string>>} */
  const places = new Map();
  const unexpected = reports.filter((report) => {
    const { instance, place } = whereOf(report);
    const alarm = FALSE_ALARMS[tool]?.find(({ kernel, text }) => kernel.test(instance) && text.test(report[0]));
    const seen = places.get(instance) ?? new Set();
    places.set(instance, seen.add(place));
    return !alarm || seen.size > (alarm.places ?? Infinity);
  });
  // A tool that leaves out reports, or that watched nothing, must not look clean.
  return { unexpected, falseAlarms: reports.length - unexpected.length, complete: counted === reports.length };
}

module.exports = { judge };
