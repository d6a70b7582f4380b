'use strict';
// The program that ./profile.cjs runs under Nsight Compute: one case, a few times. Usage: profiled.cjs OPERATION CASE
const path = require('node:path');
const { place, poolSize } = require('./driver.cjs');
const { ROOT } = require('./common.cjs');
const { OPERATIONS } = require('./operations.cjs');
const { Own } = require('./own.cjs');
const { normalNumbers, repeated } = require('./pool.cjs');

/** @type {typeof import('../../../lib/index')} */
const { systemInfo } = require(path.join(ROOT, 'dist/index.js'));

async function main() {
  const operation = OPERATIONS[process.argv[2]];
  const item = operation.cases[Number(process.argv[3])];
  const gpu = systemInfo().cuda.devices.find(({ usable }) => usable);
  const pool = repeated(normalNumbers(1), poolSize([item]), `cuda:${gpu?.index ?? 0}`);
  const own = new Own(operation, pool);
  await own.load(place(item), item.options);
  for (let n = 0; n < 3; n++) own.shapes();
}

void main();
