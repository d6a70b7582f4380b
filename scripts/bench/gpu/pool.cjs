'use strict';
// Random numbers that all implementations share: one file of bfloat16 normal numbers, of which every input is a part.
const fs = require('node:fs');

const TABLE_SIZE = 2 ** 16;

/** Normal numbers, each as likely as the other, as bits of bfloat16. @param {() => number} uniform in [0, 1) */
function normalTable(uniform) {
  const values = Float32Array.from({ length: TABLE_SIZE }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    return radius * Math.cos(2 * Math.PI * uniform());
  });
  const bits = new Uint32Array(values.buffer);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

/** @param {number} size @param {number} seed @returns {Uint16Array} bits of bfloat16 */
function normalNumbers(size, seed) {
  let state = seed;
  const draw = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
  const table = normalTable(() => draw() / 2 ** 32);
  const numbers = new Uint16Array(size);
  for (let at = 0; at + 1 < size; at += 2) {
    const word = draw();
    numbers[at] = table[word >>> 16];
    numbers[at + 1] = table[word & 0xffff];
  }
  if (size % 2 === 1) numbers[size - 1] = table[draw() >>> 16];
  return numbers;
}

/** @param {string} file @param {Uint16Array} numbers */
function writeNumbers(file, numbers) {
  fs.writeFileSync(file, new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength));
}

const DECODED = Float32Array.from(
  new Float32Array(Uint32Array.from({ length: TABLE_SIZE }, (_, bits) => bits << 16).buffer),
);

/** The values of bfloat16 bits. @param {Uint16Array} bits */
function decode(bits) {
  const values = new Float32Array(bits.length);
  for (let at = 0; at < bits.length; at++) values[at] = DECODED[bits[at]];
  return values;
}

module.exports = { decode, normalNumbers, writeNumbers };
