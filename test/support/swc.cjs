// How the tests compile TypeScript; types are checked apart, by tsc.
/** @type {import('@swc/core').Options} */
module.exports = {
  jsc: { parser: { syntax: 'typescript' }, target: 'es2022', keepClassNames: true },
  module: { type: 'commonjs' },
  sourceMaps: 'inline',
};
