import { judge } from '../../scripts/gpu/alarms.cjs';

// What the sanitizers' program makes of the output of compute-sanitizer: the output's form is that of version 2025.3.

const output = (...reports: string[][]) =>
  ['COMPUTE-SANITIZER\ndone', ...reports.map((lines) => lines.join('\n'))]
    .join('\n')
    .replace(/^(?!done$)/gm, '========= ')
    .concat('\n');
const SEPARATOR = '';
const uninitialized = (bytes: string, kernel: string) => [
  `Uninitialized __global__ memory read of size ${bytes} bytes`,
  `    at void warpgrad::cuda::sm90::${kernel}(warpgrad::cuda::sm90::Params)+0xcbd0`,
  '    by thread (128,0,0) in block (1,0,0)',
  '    Address 0x48ea3d8200',
  SEPARATOR,
];
const errors = (count: number) => [`ERROR SUMMARY: ${count} error${count === 1 ? '' : 's'}`];
const hazards = (count: number) => [`RACECHECK SUMMARY: ${count} hazards displayed (${count} errors, 0 warnings)`];

test.each([
  ['memcheck', errors(0)],
  ['racecheck', hazards(0)],
])('%s without reports', (tool, summary) => {
  expect(judge(tool, output(summary))).toEqual({ unexpected: [], falseAlarms: 0, complete: true });
});

test('bulk loads of what other kernels store in bulk are known to initcheck alone', () => {
  const known = [
    uninitialized('768', 'kda_gradients_kernel<Config<(int)2>>'),
    uninitialized('24,576', 'kda_reverse_kernel<Config<(int)2>>'),
  ];
  expect(judge('initcheck', output(...known, errors(2)))).toEqual({ unexpected: [], falseAlarms: 2, complete: true });
  expect(judge('memcheck', output(...known, errors(2))).unexpected).toHaveLength(2);
});

test.each([
  ['a plain load of the same kernel', uninitialized('16', 'kda_gradients_kernel<Config<(int)2>>')],
  ['a bulk load of another kernel', uninitialized('768', 'kda_prepare_kernel<Config<(int)2>>')],
  ['what came after the tool had no more room', ['Warning: Error buffer overflow has been detected.', SEPARATOR]],
  ['a write', ['Invalid __global__ write of size 16 bytes', '    at kda_reverse_kernel(Params)+0x10', SEPARATOR]],
])('initcheck: %s is not', (_, report) => {
  const { unexpected } = judge('initcheck', output(report, errors(1)));
  expect(unexpected.map(([first]) => first)).toEqual([report[0]]);
});

test('races are not', () => {
  const kernel = 'warpgrad::cuda::sm90::kda_recurrence_kernel<Config<(int)2>>(Params)';
  const report = [
    `Error: Race reported between Write access at void ${kernel}+0x9430`,
    `    and Read access at void ${kernel}+0x8730 [587264 hazards]`,
    SEPARATOR,
  ];
  const { unexpected, complete } = judge('racecheck', output(report, hazards(1)));
  expect([unexpected, complete]).toEqual([[report.slice(0, 2).map((line) => line.trim())], true]);
});

test('output without the end, or with fewer reports than counted, is not complete', () => {
  expect(judge('racecheck', output()).complete).toBe(false);
  expect(judge('initcheck', output(uninitialized('768', 'kda_reverse_kernel<C>'), errors(2))).complete).toBe(false);
});
