import { join } from 'node:path';
import ts from 'typescript';

const root = join(__dirname, '../..');

function diagnosticsOf(file: string, options: ts.CompilerOptions) {
  const program = ts.createProgram([file], options);
  return ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const line = file && start !== undefined ? file.getLineAndCharacterOfPosition(start).line + 1 : 0;
    return `${file?.fileName ?? ''}:${line} ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
}

// Expected values: the compiler's verdict on api.ts; a line marked @ts-expect-error that compiles is an error too.
test('the public types accept what they must, and nothing else', () => {
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), (path) => ts.sys.readFile(path));
  const { options } = ts.parseJsonConfigFileContent({ ...config, files: [], include: [] }, ts.sys, root);
  // As a user may have it: an option that may be undefined must say so.
  const strict = { exactOptionalPropertyTypes: true, noEmit: true };
  expect(diagnosticsOf(join(__dirname, 'api.ts'), { ...options, ...strict })).toEqual([]);
});

// Both entries by themselves, in a project with an old library and without Node's types. Those of TensorFlow.js have errors of their own.
test.each(['index', 'integrations/tfjs'])('the declarations of %s need no more than ES2020', (entry) => {
  const options = { module: ts.ModuleKind.Node16, lib: ['lib.es2020.d.ts'], types: [], strict: true, noEmit: true };
  const messages = diagnosticsOf(join(root, 'dist', `${entry}.d.ts`), options);
  expect(messages.filter((message) => message.startsWith(join(root, 'dist')))).toEqual([]);
});
