import { readFileSync } from 'node:fs';
import { float64, type Float64Tensor } from '../../lib/reference/float64';

export interface SafetensorsFile {
  readonly metadata: Record<string, string>;
  readonly tensors: Record<string, Float64Tensor>;
}

/** Reads a .safetensors file of F32 and I32 tensors; test/golden/FORMAT.md describes the layout. */
export function readSafetensors(path: string): SafetensorsFile {
  const file = readFileSync(path);
  const headerBytes = Number(file.readBigUInt64LE(0));
  const { __metadata__: metadata = {}, ...entries } = JSON.parse(file.toString('utf8', 8, 8 + headerBytes)) as {
    __metadata__?: Record<string, string>;
  } & Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;
  const tensors: Record<string, Float64Tensor> = {};
  for (const [name, { dtype, shape, data_offsets: range }] of Object.entries(entries)) {
    const [begin, end] = range.map((offset) => 8 + headerBytes + offset) as [number, number];
    const view = new DataView(file.buffer, file.byteOffset + begin, end - begin);
    const read = { F32: view.getFloat32, I32: view.getInt32 }[dtype];
    if (!read) throw new Error(`${path}: ${name} has the unexpected dtype ${dtype}`);
    const numbers = Array.from({ length: (end - begin) / 4 }, (_, n) => read.call(view, 4 * n, true));
    tensors[name] = float64(numbers, shape);
  }
  return { metadata, tensors };
}
