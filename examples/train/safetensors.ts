/** The safetensors format, for float32: u64 length of a JSON header, the header, the data. */
import { existsSync, realpathSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { UsageError } from './errors';

export interface StoredTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export interface Archive {
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: Readonly<Record<string, StoredTensor>>;
}

/** The file itself where `path` is a link to one. @throws UsageError where it is something else than a file */
export function fileToWrite(path: string): string {
  if (!existsSync(path)) return path;
  const target = realpathSync(path);
  if (!statSync(target).isFile()) throw new UsageError(`--save: ${path} is no file`);
  return target;
}

/** Writes to a temporary name first, so that an interrupted write leaves the earlier file whole. */
export function writeSafetensors(path: string, { metadata, tensors }: Archive): void {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  const json = Buffer.from(JSON.stringify(header));
  const padded = Buffer.concat([json, Buffer.alloc((8 - (json.length % 8)) % 8, ' ')]);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const data = Object.values(tensors).map(({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  const target = fileToWrite(path);
  const temporary = `${target}.${process.pid}.tmp`;
  writeFileSync(temporary, Buffer.concat([length, padded, ...data]));
  renameSync(temporary, target);
}

/** Throws an error that says what is wrong where the bytes are not a whole safetensors file of float32. */
export function parseSafetensors(bytes: Buffer): Archive {
  if (bytes.length < 8) throw new Error('it ends inside the header');
  const headerLength = Number(bytes.readBigUInt64LE(0));
  const start = 8 + headerLength;
  if (start > bytes.length) throw new Error('it ends inside the header');
  const { __metadata__: metadata = {}, ...entries } = parseHeader(bytes.subarray(8, start));
  const tensors: Record<string, StoredTensor> = {};
  for (const [name, entry] of Object.entries(entries)) tensors[name] = readTensor(name, entry, bytes.subarray(start));
  return { metadata: metadata as Record<string, string>, tensors };
}

function parseHeader(json: Buffer): Record<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(json.toString('utf8'));
  } catch {
    throw new Error('its header is not JSON');
  }
  if (typeof header !== 'object' || header === null) throw new Error('its header is not an object');
  return header as Record<string, unknown>;
}

function readTensor(name: string, entry: unknown, data: Buffer): StoredTensor {
  const { dtype, shape, data_offsets: offsets } = entry as { dtype?: unknown; shape?: unknown; data_offsets?: unknown };
  if (dtype !== 'F32' || !isCounts(shape) || !isCounts(offsets) || offsets.length !== 2) {
    throw new Error(`its entry ${name} is malformed`);
  }
  const [begin, end] = offsets as [number, number];
  const size = shape.reduce((product, extent) => product * extent, 1);
  if (end - begin !== 4 * size) throw new Error(`the size of ${name} does not fit its shape`);
  if (end > data.length) throw new Error(`it ends inside ${name}`);
  return { shape, data: new Float32Array(Uint8Array.from(data.subarray(begin, end)).buffer) };
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isInteger(item) && item >= 0);
}
