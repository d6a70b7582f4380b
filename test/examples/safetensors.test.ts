import { existsSync, lstatSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { parseSafetensors, writeSafetensors } from '../../examples/train/safetensors';
import { workFolder } from './support';

const folder = workFolder();
const archive = { metadata: { a: 'b' }, tensors: { x: { shape: [2], data: Float32Array.of(1, 2) } } };

test('a link stays one, and its file is written', () => {
  const [file, link] = [folder.file('file'), folder.file('link')];
  writeFileSync(file, 'old');
  symlinkSync(file, link);
  writeSafetensors(link, archive);
  expect(lstatSync(link).isSymbolicLink()).toBe(true);
  expect(parseSafetensors(readFileSync(file)).metadata).toEqual(archive.metadata);
});

test('what is no file is left alone', () => {
  const place = folder.file('folder');
  mkdirSync(place);
  expect(() => writeSafetensors(place, archive)).toThrow(/--save: .* is no file/);
  expect(existsSync(`${place}.${process.pid}.tmp`)).toBe(false);
});
