import fs from 'node:fs';
import path from 'node:path';
import { systemInfo } from '../../lib';
import { kernelsOf } from '../support/machineCode';
import { ROOT } from './install';

// What the CUDA compiler made, read from the build: no GPU is needed.

const { binary, cuda } = systemInfo();
const describeBuild = cuda.compiled ? describe : describe.skip;
const title = cuda.compiled ? 'GPU kernels' : 'GPU kernels (skipped: this build has none)';

/**
 * What multiplies in the kernels that live on the tensor cores, and what loads: WGMMA or, for products of 16 rows alone
 * (''), mma; tensors, or blocks of memory that a kernel before it laid out ('').
 */
const MAIN_KERNELS = [
  ['attention_fwd_kernel', 'HGMMA', 'UTMALDG'],
  ['attention_bwd_kernel', 'HGMMA', 'UTMALDG'],
  ['attention_bwd_dq_kernel', 'HGMMA', 'UTMALDG'],
  ['kda_prepare_kernel', '', 'UTMALDG'],
  ['kda_recurrence_kernel', 'HGMMA', ''],
  ['kda_reverse_kernel', 'HGMMA', 'UTMALDG'],
  ['kda_gradients_kernel', 'HGMMA', 'UTMALDG'],
] as const;

const LOGS = path.join(ROOT, '.build/addon/CMakeFiles/warpgrad_cuda.dir/native/backends/cuda');

describeBuild(title, () => {
  const kernels = cuda.compiled ? kernelsOf(binary) : [];

  test.each(MAIN_KERNELS)('%s multiplies by WGMMA (%s) and loads by the copy engine (%s)', (name, ...wanted) => {
    const named = kernels.filter((kernel) => kernel.name.includes(name));
    expect(named.length).toBeGreaterThan(0);
    expect(named.filter(({ counts }) => wanted.some((code) => code && counts[code] === 0))).toEqual([]);
  });

  test('no kernel touches local memory', () => {
    expect(kernels.length).toBeGreaterThan(0);
    expect(kernels.filter(({ counts }) => counts.LDL > 0 || counts.STL > 0)).toEqual([]);
  });

  // Each object's log holds all that the compilers said, with ptxas's report of every kernel.
  const logs = cuda.compiled
    ? (fs.readdirSync(LOGS, { recursive: true }) as string[]).filter((name) => name.endsWith('.cu.o.log'))
    : ['-'];
  test.each(logs)('the compilers have nothing to complain about in %s', (name) => {
    const lines = fs.readFileSync(path.join(LOGS, name), 'utf8').split('\n');
    const harmless = [
      /^ptxas info {4}: (Compiling entry function|Function properties|Used \d+ registers|Compile time|\d+ bytes gmem)/,
      /^ {4}0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads$/,
      /^$/,
    ];
    expect(lines.filter((line) => !harmless.some((pattern) => pattern.test(line)))).toEqual([]);
  });

  test('every CUDA source has its log', () => {
    const sources = path.join(ROOT, 'native/backends/cuda');
    const files = (fs.readdirSync(sources, { recursive: true }) as string[]).filter((name) => name.endsWith('.cu'));
    expect([...logs].sort()).toEqual(files.map((name) => `${name}.o.log`).sort());
  });
});
