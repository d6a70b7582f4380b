import { Stream, Tensor } from '../../../lib';

// Uses blocks of many sizes once, then one size again and again. Prints by how many megabytes resident memory has grown
// after the first, and how many page faults each of the second has cost.

const MEGABYTE = 2 ** 20;
const ROUNDS = 50;

function use(megabytes: number): void {
  Tensor.zeros([(megabytes * MEGABYTE) / 4]).dispose();
  Stream.current().synchronizeSync(); // the zeros are written, the block is free
}

use(1);
const start = process.memoryUsage.rss();
for (let octave = 16; octave <= 64; octave *= 2) {
  for (let step = 8; step < 16; step++) use((octave * step) / 8);
}
const megabytes = Math.round((process.memoryUsage.rss() - start) / MEGABYTE);
use(144);
const { minorPageFault } = process.resourceUsage();
for (let round = 0; round < ROUNDS; round++) use(144);
const faults = (process.resourceUsage().minorPageFault - minorPageFault) / ROUNDS;
process.stdout.write(JSON.stringify({ megabytes, faults }));
