'use strict';
// One fingerprint of everything that the native build is made of: the record of the GPU suite names it, so that a test
// without a GPU can say whether the record belongs to these sources.
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const SOURCE = /\.(h|cc|cu|cuh|map)$/;

/** @param {string} root the folder of the checkout, or of the unpacked GPU archive @returns {string} SHA-256, hexadecimal */
function hashNativeSources(root) {
  const entries = fs.readdirSync(path.join(root, 'native'), { recursive: true, encoding: 'utf8' });
  const files = entries.filter((name) => SOURCE.test(name)).map((name) => path.posix.join('native', name));
  const hash = createHash('sha256');
  for (const file of [...files.sort(), 'CMakeLists.txt']) {
    hash
      .update(`${file}\0`)
      .update(fs.readFileSync(path.join(root, file)))
      .update('\0');
  }
  return hash.digest('hex');
}

module.exports = { hashNativeSources };
