import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

export const SENTENCE = 'The quick brown fox jumps over the lazy dog, and the dog does not mind at all.\n';

/** A folder of its own for a test file, with `text.txt` in it; removed at the end. */
export function workFolder(): { readonly path: string; file(name: string): string } {
  const folder = mkdtempSync(path.join(tmpdir(), 'warpgrad-train-'));
  writeFileSync(path.join(folder, 'text.txt'), SENTENCE.repeat(100));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return { path: folder, file: (name) => path.join(folder, name) };
}
