import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { systemInfo } from '../../lib';
import { type Installed, ROOT, npm, packAndInstall, run } from './install';

let installed: Installed;
beforeAll(() => {
  installed = packAndInstall();
}, 600_000);
afterAll(() => installed?.remove());

/** Runs a file of the consumer's folder with no program but node to be found, and parses what it prints. */
function runConsumer(file: string): any {
  return JSON.parse(run(process.execPath, [file], installed.consumer, installed.bareEnv));
}

function runTool(packageName: string, program: string, args: string[], cwd = ROOT): string {
  return run(process.execPath, [path.join(ROOT, 'node_modules', packageName, program), ...args], cwd);
}

describe('installed package', () => {
  test('CommonJS: gradients agree with central differences', () => {
    expect(runConsumer('gradients.cjs').worst).toBeLessThan(1e-6);
  });

  test('ESM and CommonJS share one native instance and export the same names', () => {
    const { names, sameClass, sharedBytes, sameStats } = runConsumer('instances.mjs');
    const withoutInterop = (list: string[]) => list.filter((name) => name !== 'default' && name !== 'module.exports');
    expect(withoutInterop(names[0])).toEqual(withoutInterop(names[1]));
    expect(names[1]).toContain('kdaBackward');
    expect({ sameClass, sharedBytes, sameStats }).toEqual({ sameClass: true, sharedBytes: 4096, sameStats: true });
  });

  test('TypeScript with nodenext compiles against the types, and the result runs', () => {
    runTool('typescript', 'bin/tsc', ['-p', installed.consumer]);
    expect(runConsumer('out/typed.mjs').lengths).toEqual([32, 8, 32, 32]);
  });

  test('the command line program answers', () => {
    const program = path.join(installed.consumer, 'node_modules/.bin/warpgrad');
    const report = JSON.parse(
      run(process.execPath, [program, 'doctor', '--json'], installed.consumer, installed.bareEnv),
    );
    expect(report.binary).toContain(path.join('warpgrad', 'prebuilds'));
  });

  test('the example of the README runs as printed', () => {
    const readme = fs.readFileSync(path.join(ROOT, 'README.md'), 'utf8');
    const example = /```js\n([^]*?)```/.exec(readme)?.[1];
    fs.writeFileSync(path.join(installed.consumer, 'example.mjs'), example ?? '');
    const output = run(process.execPath, ['example.mjs'], installed.consumer, installed.bareEnv);
    const promised = /prints:?\n+```text\n([^]*?)```/.exec(readme)?.[1];
    expect(promised).toBeDefined();
    expect(output).toBe(promised);
  });
});

describe('tarball', () => {
  test('publint has nothing to say', () => {
    expect(runTool('publint', 'src/cli.js', ['run', installed.tarball, '--strict'])).toContain('All good!');
  });

  test('attw finds the types in every module system', () => {
    const report = runTool('@arethetypeswrong/cli', 'dist/index.js', [
      ...['--profile', 'node16', '--format', 'json', installed.tarball],
    ]);
    // The resolution of Node 10, which knows no subpaths, is listed but not part of the profile.
    const problems = Object.values(JSON.parse(report).problems ?? {}).flat() as { resolutionKind?: string }[];
    expect(problems.filter(({ resolutionKind }) => resolutionKind !== 'node10')).toEqual([]);
  });

  test('holds the sources of the native build and nothing of the tests', () => {
    const files = run('tar', ['-tzf', installed.tarball], ROOT).split('\n');
    const needed = ['CMakeLists.txt', 'binding.gyp', 'LICENSE', 'scripts/build-native.cjs', 'native/core/dtype.h'];
    expect(files).toEqual(expect.arrayContaining(needed.map((name) => `package/${name}`)));
    expect(files.filter((name) => /(^|\/)(test|node_modules|\.build)\//.test(name))).toEqual([]);
  });

  // Those to the example, which needs the tools of the checkout, are not.
  test('holds the pages that its README links to', () => {
    const files = run('tar', ['-tzf', installed.tarball], ROOT).split('\n');
    const readme = fs.readFileSync(path.join(ROOT, 'README.md'), 'utf8');
    const links = [...readme.matchAll(/\]\((?!\w+:|#|examples\/)([^)#]+)/g)].map(([, link]) => `package/${link}`);
    expect(links).toContain('package/docs/kda.md');
    expect(files).toEqual(expect.arrayContaining(links));
    expect(files.filter((name) => /^package\/docs\/(?!.*\.(md|svg)$)/.test(name))).toEqual([]);
  });

  test('holds JavaScript and types, built afresh where there are none', () => {
    const checkout = fs.mkdtempSync(path.join(os.tmpdir(), 'warpgrad-pack-'));
    try {
      for (const name of ['lib', 'package.json', 'tsconfig.json', 'tsconfig.build.json']) {
        fs.cpSync(path.join(ROOT, name), path.join(checkout, name), { recursive: true });
      }
      fs.symlinkSync(path.join(ROOT, 'node_modules'), path.join(checkout, 'node_modules'));
      npm(['pack'], checkout);
      const tarball = fs.readdirSync(checkout).find((name) => name.endsWith('.tgz'));
      const files = run('tar', ['-tzf', String(tarball)], checkout).split('\n');
      const built = ['index.js', 'index.mjs', 'index.d.ts', 'cli/main.js', 'integrations/tfjs.js'];
      expect(files).toEqual(expect.arrayContaining(built.map((name) => `package/dist/${name}`)));
    } finally {
      fs.rmSync(checkout, { recursive: true });
    }
  });
});

describe('prebuilt addon', () => {
  test('exports the two symbols of Node-API', () => {
    const symbols = run('nm', ['-D', '--defined-only', '--format=just-symbols', installed.binary], ROOT);
    expect(symbols.trim().split('\n').sort()).toEqual([
      'napi_register_module_v1',
      'node_api_module_get_api_version_v1',
    ]);
  });

  test('needs no glibc beyond 2.34', () => {
    const versions = [...run('objdump', ['-T', installed.binary], ROOT).matchAll(/GLIBC_2\.(\d+)/g)];
    expect(versions.length).toBeGreaterThan(0);
    expect(Math.max(...versions.map(([, minor]) => Number(minor)))).toBeLessThanOrEqual(34);
  });

  test('needs only the C library, the compiler support library and the loader', () => {
    const libraries = [...run('objdump', ['-p', installed.binary], ROOT).matchAll(/NEEDED\s+(\S+)/g)].map(
      ([, name]) => name,
    );
    const allowed = ['libc.so.6', 'libm.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'];
    expect(libraries).toContain('libc.so.6');
    expect(libraries.filter((name) => !allowed.includes(name))).toEqual([]);
  });

  test('is smaller than 5 MB, or 15 MB with GPU kernels', () => {
    expect(fs.statSync(installed.binary).size).toBeLessThan(systemInfo().cuda.compiled ? 15e6 : 5e6);
  });
});
