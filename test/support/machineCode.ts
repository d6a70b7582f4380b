import { readFileSync } from 'node:fs';
import { decompress } from 'fzstd';

// The machine code of GPU kernels in an object file or an addon, without a disassembler: the CUDA compiler leaves each
// file's kernels in a fat binary, as an ELF image with one `.text.<kernel>` section a kernel, 16 bytes an instruction.

/** Opcodes (the first 16 bits of an instruction, their low 9 bits) of Hopper's machine code. */
const OPCODES = {
  HGMMA: 0x1f0, // matrix product of a warpgroup
  UTMALDG: 0x1b4, // load by the copy engine
  LDL: 0x183, // load from local memory: a spilled register or an array with run-time indices
  STL: 0x187, // store to local memory
} as const;

export type Instruction = keyof typeof OPCODES;

export interface KernelCode {
  /** As the linker knows it. */
  readonly name: string;
  readonly counts: Readonly<Record<Instruction, number>>;
}

const FAT_BINARY_MAGIC = Buffer.from('50ed55ba', 'hex');
const ELF_KIND = 2;
const KERNEL_SECTION = '.text.';

/** Every kernel in the file. */
export function kernelsOf(path: string): KernelCode[] {
  const file = readFileSync(path);
  const kernels: KernelCode[] = [];
  for (let at = file.indexOf(FAT_BINARY_MAGIC); at >= 0; at = file.indexOf(FAT_BINARY_MAGIC, at + 1)) {
    kernels.push(...imagesOf(file.subarray(at)).flatMap(kernelsOfImage));
  }
  return kernels;
}

/** A header with the size of all entries; each entry has a header of its own, and its image is compressed by Zstandard. */
function imagesOf(fatBinary: Buffer): Buffer[] {
  const images: Buffer[] = [];
  let at = fatBinary.readUInt16LE(6);
  const end = at + Number(fatBinary.readBigUInt64LE(8));
  while (at < end) {
    const [headerBytes, bytes] = [fatBinary.readUInt32LE(at + 4), Number(fatBinary.readBigUInt64LE(at + 8))];
    const [compressedBytes, imageBytes] = [fatBinary.readUInt32LE(at + 16), fatBinary.readUInt32LE(at + 56)];
    const compressed = fatBinary.subarray(at + headerBytes, at + headerBytes + compressedBytes);
    if (fatBinary.readUInt16LE(at) === ELF_KIND) {
      images.push(Buffer.from(decompress(compressed, new Uint8Array(imageBytes)).buffer));
    }
    at += headerBytes + bytes;
  }
  return images;
}

function kernelsOfImage(image: Buffer): KernelCode[] {
  const table = Number(image.readBigUInt64LE(0x28));
  const [entryBytes, entries, namesIndex] = [0x3a, 0x3c, 0x3e].map((at) => image.readUInt16LE(at)) as [
    number,
    number,
    number,
  ];
  const sections = Array.from({ length: entries }, (_, n) => {
    const at = table + n * entryBytes;
    const [offset, bytes] = [Number(image.readBigUInt64LE(at + 24)), Number(image.readBigUInt64LE(at + 32))];
    return { nameAt: image.readUInt32LE(at), content: image.subarray(offset, offset + bytes) };
  });
  const names = sections[namesIndex].content;
  return sections.flatMap(({ nameAt, content }) => {
    const name = names.toString('latin1', nameAt, names.indexOf(0, nameAt));
    return name.startsWith(KERNEL_SECTION) ? [{ name: name.slice(KERNEL_SECTION.length), counts: count(content) }] : [];
  });
}

function count(code: Buffer): KernelCode['counts'] {
  const counts = { HGMMA: 0, UTMALDG: 0, LDL: 0, STL: 0 };
  for (let at = 0; at < code.length; at += 16) {
    const opcode = code.readUInt16LE(at) & 0x1ff;
    for (const name of Object.keys(OPCODES) as Instruction[]) if (OPCODES[name] === opcode) counts[name]++;
  }
  return counts;
}
