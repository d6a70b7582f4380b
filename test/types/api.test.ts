import { join } from 'node:path';
import ts from 'typescript';

// Expected values: the compiler's verdict on api.ts; a line marked @ts-expect-error that compiles is an error too.
test('the public types accept what they must, and nothing else', () => {
  const root = join(__dirname, '../..');
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), (path) => ts.sys.readFile(path));
  const { options } = ts.parseJsonConfigFileContent({ ...config, files: [], include: [] }, ts.sys, root);
  // As a user may have it: an option that may be undefined must say so.
  const strict = { exactOptionalPropertyTypes: true, noEmit: true };
  const program = ts.createProgram([join(__dirname, 'api.ts')], { ...options, ...strict });
  const messages = ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const line = file && start !== undefined ? file.getLineAndCharacterOfPosition(start).line + 1 : 0;
    return `${file?.fileName ?? ''}:${line} ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
  expect(messages).toEqual([]);
});
