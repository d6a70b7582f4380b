'use strict';
// What a result has to name beside its numbers.
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../..');

/** The output of a program, or null where it is not there or fails. @param {string} command @param {string[]} args */
function outputOf(command, args) {
  try {
    return execFileSync(command, args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return null;
  }
}

/** The version of the GPU's driver. */
function driverVersion() {
  return outputOf('nvidia-smi', ['--query-gpu=driver_version', '--format=csv,noheader', '--id=0']);
}

/** The commit of the checkout, or of the one that the archive was made in. */
function commit() {
  const file = path.join(ROOT, 'commit');
  if (fs.existsSync(file)) return fs.readFileSync(file, 'utf8');
  const changes = outputOf('git', ['status', '--porcelain']);
  return `${outputOf('git', ['rev-parse', 'HEAD'])}${changes ? ' with changes' : ''}`;
}

module.exports = { commit, driverVersion };
