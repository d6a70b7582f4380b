import { writeFileSync } from 'node:fs';
import { parseOptions } from '../../examples/train/options';
import { loadText } from '../../examples/train/text';
import { workFolder } from './support';

const folder = workFolder();

test('defaults', () => {
  expect(parseOptions([])).toMatchObject({ steps: 800, seed: 1, device: 'auto', json: false, help: false });
  expect(parseOptions([]).out).toMatch(/^runs.\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d$/);
});

test('-h is --help', () => {
  expect(parseOptions(['-h']).help).toBe(true);
});

test('every option', () => {
  const args = [
    '--text',
    't',
    '--steps',
    '7',
    '--device',
    'cuda:1',
    '--seed',
    '0',
    '--save',
    's',
    '--out',
    'o',
    '--json',
  ];
  expect(parseOptions(args)).toMatchObject({
    ...{ text: 't', steps: 7, device: 'cuda:1', seed: 0, save: 's', out: 'o', json: true },
  });
});

test.each<[string, string[], string]>([
  ['an unknown option', ['--stpes', '3'], "Unknown option '--stpes'"],
  ['an argument too many', ['file.txt'], "Unexpected argument 'file.txt'"],
  ['a missing value', ['--text'], "Option '--text <value>' argument missing"],
  ['no number', ['--steps', 'many'], "--steps must be a whole number of at least 1, got 'many'"],
  ['no steps', ['--steps', '0'], "--steps must be a whole number of at least 1, got '0'"],
  ['a negative number', ['--steps', '-5'], "--steps must be a whole number of at least 1, got '-5'"],
  ['a negative number with =', ['--seed=-5'], "--seed must be a whole number of at least 0, got '-5'"],
  ['a number for a flag', ['--json', '-5'], "Option '--json' does not take an argument"],
  ['an option instead of a number', ['--steps', '--json'], "Option '--steps' argument is ambiguous"],
  ['a fractional seed', ['--seed', '1.5'], "--seed must be a whole number of at least 0, got '1.5'"],
  ['a seed past what numbers hold', ['--seed', '1e30'], "--seed must be a whole number of at least 0, got '1e30'"],
  ['an unknown device', ['--device', 'tpu'], "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"],
  ['a device number past all', ['--device', 'cuda:99999'], '--device must be auto, cpu, cuda or cuda:N'],
  ['no folder', ['--out='], "--out must be a folder, got ''"],
  ['no target', ['--save='], "--save must be a file, got ''"],
  ['a target without a folder', ['--save', 'no/where'], '--save: there is no folder'],
  ['a folder as target', ['--save', '.'], '--save: . is a folder'],
  ['a seed for a resumed run', ['--resume', 'x', '--seed', '1'], '--seed: a resumed run keeps the seed'],
])('%s is refused', (_, args, message) => {
  expect(() => parseOptions(args)).toThrow(message);
});

test.each<[string, string, string]>([
  ['an empty text', '', 'has 0 bytes; at least 4096 are needed'],
  ['a short text', 'short', 'has 5 bytes; at least 4096 are needed'],
])('%s is refused', (_, content, message) => {
  writeFileSync(folder.file('bad.txt'), content);
  expect(() => loadText(folder.file('bad.txt'))).toThrow(message);
});

test('a missing text is refused', () => {
  expect(() => loadText(folder.file('none.txt'))).toThrow(/^--text: cannot read .*none.txt: ENOENT/);
});

test('the end of the text is held out, and every byte comes back', () => {
  const text = loadText(folder.file('text.txt'));
  const bytes = [...text.train, ...text.validation].map((token) => text.alphabet[token]);
  expect(Buffer.from(bytes).toString()).toMatch(/^(The quick brown fox .* at all\.\n){100}$/);
  expect(text.validation.length / bytes.length).toBeCloseTo(0.05, 3);
});
