// One native instance and one set of classes, whichever module system asks.
import { createRequire } from 'node:module';
import * as fromImport from 'warpgrad';

const fromRequire = createRequire(import.meta.url)('warpgrad');
const { Tensor, memoryStats } = fromImport;
const before = fromRequire.memoryStats().liveBytes;
const tensor = Tensor.zeros([1024]);
console.log(
  JSON.stringify({
    names: [Object.keys(fromImport).sort(), Object.keys(fromRequire).sort()],
    sameClass: tensor instanceof fromRequire.Tensor,
    sharedBytes: fromRequire.memoryStats().liveBytes - before,
    sameStats: memoryStats().liveBytes === fromRequire.memoryStats().liveBytes,
  }),
);
