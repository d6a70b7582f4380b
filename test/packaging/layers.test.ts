import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { findViolations } from '../../scripts/check-layers.cjs';

/** The violations of a tree with nothing but these files. */
function check(files: Record<string, string>): string[] {
  const root = fs.mkdtempSync(path.join(os.tmpdir(), 'warpgrad-layers-'));
  try {
    for (const [name, text] of Object.entries(files)) {
      fs.mkdirSync(path.join(root, path.dirname(name)), { recursive: true });
      fs.writeFileSync(path.join(root, name), text);
    }
    return findViolations(root);
  } finally {
    fs.rmSync(root, { recursive: true, force: true });
  }
}

const HEADERS = {
  'native/core/dtype.h': '#include <cstdint>\n',
  'native/ops/kda.h': '#include "core/dtype.h"\n',
  'native/backends/cpu/kernels.h': '#include "ops/kda.h"\n',
  'native/backends/cuda/probe.h': '#include <cuda_runtime.h>\n',
  'native/binding/addon.h': '#include <napi.h>\n#include "ops/kda.h"\n',
};

test('a tree along the arrow has no violation', () => {
  const violations = check({
    ...HEADERS,
    'native/ops/registry.cc': '#include "backends/cpu/kernels.h"\n#include "backends/cuda/probe.h"\n',
    'lib/tensor.ts': "import { native } from './native.js';\n",
    'lib/native.ts': "import load from 'node-gyp-build';\n",
    'lib/cli/check.ts': "import { Tensor } from '../tensor.js';\nimport { kda } from '../reference/kda.js';\n",
    'lib/integrations/tfjs.ts': "import { Tensor } from '../tensor.js';\n",
  });
  expect(violations).toEqual([]);
});

test.each([
  ['native/core/bad.h', '#include "ops/kda.h"', 'native/core must not include native/ops (ops/kda.h)'],
  ['native/core/bad.h', '#include "../ops/kda.h"', 'native/core must not include native/ops (../ops/kda.h)'],
  ['native/ops/bad.cc', '#include "backends/cpu/kernels.h"', 'native/ops must not include native/backends/cpu'],
  ['native/ops/bad.cc', '#include "binding/addon.h"', 'native/ops must not include native/binding'],
  ['native/ops/bad.cc', '#  include <napi.h>', "only native/binding includes Node's headers (napi.h)"],
  ['native/binding/bad.cc', '#include "backends/cpu/kernels.h"', 'native/binding must not include native/backends/cpu'],
  ['native/binding/bad.cc', '#include <cuda_runtime.h>', "only native/backends/cuda includes CUDA's headers"],
  ['native/backends/cpu/bad.cc', '#include <node_api.h>', "only native/binding includes Node's headers (node_api.h)"],
  ['native/backends/cpu/bad.cc', '#include "backends/cuda/probe.h"', 'must not include native/backends/cuda'],
  ['native/backends/cuda/bad.cu', '#include "backends/cpu/kernels.h"', 'must not include native/backends/cpu'],
  ['native/backends/cuda/bad.cc', '#include <napi.h>', "only native/binding includes Node's headers (napi.h)"],
  ['native/backends/cpu/bad.cc', '#include "ops/registry.cc"', 'must not include native/ops/registry.cc'],
  ['native/elsewhere/bad.cc', '', 'belongs to no layer'],
  ['lib/bad.ts', "import { main } from './cli/main.js';", 'lib must not import lib/cli (./cli/main.js)'],
  ['lib/bad.ts', "export * from './integrations/tfjs.js';", 'lib must not import lib/integrations'],
  ['lib/bad.ts', "const kda = await import('./reference/kda.js');", 'lib must not import lib/reference'],
  ['lib/bad.ts', "const kda = require('./reference/kda.js');", 'lib must not import lib/reference'],
  [
    'lib/reference/bad.ts',
    "import { Tensor } from '../tensor.js';",
    'lib/reference must not import lib (../tensor.js)',
  ],
  ['lib/integrations/bad.mts', "import { main } from '../cli/main.js';", 'lib/integrations must not import lib/cli'],
  ['lib/cli/bad.ts', "import x from '../../test/support/x.js';", 'lib must not import from outside lib'],
  ['lib/cli/bad.ts', "import load from 'node-gyp-build';", 'only lib/native.ts loads the addon'],
])('%s: %s', (file, line, expected) => {
  const violations = check({ ...HEADERS, 'native/ops/registry.cc': '', [file]: `// first line\n${line}\n` });
  expect(violations).toHaveLength(1);
  expect(violations[0]).toContain(expected);
  if (line !== '') expect(violations[0]).toContain(`${file}:2: `);
});

test('this repository follows the arrow', () => {
  expect(findViolations(path.resolve(__dirname, '../..'))).toEqual([]);
});
