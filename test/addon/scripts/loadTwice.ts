import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { checkSmall } from './work';

// Loads all of the library a second time, as two copies of the package in one program do.
type Library = typeof import('../../../lib');

async function main(): Promise<void> {
  await checkSmall();
  const first = require('../../../lib') as Library;
  const root = join(dirname(require.resolve('../../../lib')), '..');
  for (const path of Object.keys(require.cache)) {
    if (path.startsWith(join(root, 'lib'))) delete require.cache[path];
  }
  const second = createRequire(__filename)('../../../lib') as Library;
  if (second.Tensor === first.Tensor) throw new Error('the second copy is the first');
  const tensor = second.Tensor.from([1, 2]);
  if (String(await tensor.data()) !== '1,2') throw new Error('the second copy does not work');
  await checkSmall();
  process.stdout.write('done\n');
}

void main();
