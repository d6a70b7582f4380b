import { execFileSync } from 'node:child_process';
import path from 'node:path';

test('without TensorFlow.js the import says what to install', () => {
  jest.isolateModules(() => {
    jest.doMock('@tensorflow/tfjs-core', () => {
      throw Object.assign(new Error("Cannot find module '@tensorflow/tfjs-core'"), { code: 'MODULE_NOT_FOUND' });
    });
    const load = () => require('../../lib/integrations/tfjs') as unknown;
    expect(load).toThrow(
      expect.objectContaining({
        code: 'ERR_WARPGRAD_UNSUPPORTED',
        message:
          'warpgrad/tfjs needs the package @tensorflow/tfjs-core, which is not installed: npm install @tensorflow/tfjs',
      }),
    );
  });
});

// Needs dist/, which `npm test` builds first.
test('both module systems get the same functions and the same TensorFlow.js', () => {
  const script = `
    import { createRequire } from 'node:module';
    import * as tf from '@tensorflow/tfjs-core';
    import '@tensorflow/tfjs-backend-cpu';
    import * as imported from 'warpgrad/tfjs';
    const required = createRequire(process.cwd() + '/')('warpgrad/tfjs');
    for (const name of ['attention', 'kda', 'kdaWithState']) console.log(imported[name] === required[name]);
    const x = tf.ones([1, 2, 1, 4]);
    console.log(imported.attention(x, x, x, { device: 'cpu' }) instanceof tf.Tensor);
    console.log(Object.keys(required).sort().join() === Object.keys(imported).filter((key) => key in required).sort().join());
  `;
  const root = path.join(__dirname, '../..');
  const output = execFileSync(process.execPath, ['--input-type=module', '--eval', script], {
    cwd: root,
    encoding: 'utf8',
  });
  expect(output.match(/true|false/g)).toEqual(['true', 'true', 'true', 'true', 'true']);
});
