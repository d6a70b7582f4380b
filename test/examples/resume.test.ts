import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import * as tf from '@tensorflow/tfjs';
import { setWasmPaths } from '@tensorflow/tfjs-backend-wasm';
import { loadCheckpoint, saveCheckpoint } from '../../examples/train/checkpoint';
import { loadText } from '../../examples/train/text';
import { placementsOn } from '../../examples/train/placement';
import { newRun, Trainer, type RunState } from '../../examples/train/trainer';
import { SENTENCE, workFolder } from './support';

const folder = workFolder();
const text = loadText(folder.file('text.txt'));

beforeAll(async () => {
  setWasmPaths(`${path.dirname(require.resolve('@tensorflow/tfjs-backend-wasm'))}/`);
  await tf.setBackend('wasm');
});

/** Takes the run on by so many steps and gives the bytes of its checkpoint. */
function advance(state: RunState, steps: number, file: string): Buffer {
  const trainer = new Trainer(state, text, placementsOn('cpu'));
  for (let n = 0; n < steps; n++) trainer.trainStep();
  saveCheckpoint(folder.file(file), state, text);
  return readFileSync(folder.file(file));
}

test('a resumed run equals one that never stopped, and the seed decides it', () => {
  const whole = advance(newRun(text, 1), 6, 'whole');
  advance(newRun(text, 1), 3, 'half');
  expect(advance(loadCheckpoint(folder.file('half'), text), 3, 'resumed').equals(whole)).toBe(true);
  expect(advance(newRun(text, 1), 6, 'again').equals(whole)).toBe(true);
  expect(advance(newRun(text, 2), 6, 'other').equals(whole)).toBe(false);
});

test('no tensor is left by a step or a validation', () => {
  const trainer = new Trainer(newRun(text, 1), text, placementsOn('cpu'));
  const before = tf.memory().numTensors;
  trainer.trainStep();
  trainer.validate();
  expect(tf.memory().numTensors).toBe(before);
});

describe('a checkpoint that cannot be used is named with its fault', () => {
  let whole: Buffer;
  beforeAll(() => {
    whole = advance(newRun(text, 1), 0, 'good');
  });

  test.each<[string, () => Buffer, string]>([
    ['cut in its data', () => whole.subarray(0, -1000), 'is damaged or of another kind: it ends inside'],
    ['cut in its header', () => whole.subarray(0, 50), 'is damaged or of another kind: it ends inside the header'],
    ['empty', () => Buffer.alloc(0), 'is damaged or of another kind: it ends inside the header'],
    ['no safetensors', () => Buffer.from(SENTENCE), 'is damaged or of another kind: it ends inside the header'],
    [
      'a header that is no JSON',
      () => replaced(whole, '{', '['),
      'is damaged or of another kind: its header is not JSON',
    ],
    [
      'other tensors',
      () => readFileSync(path.join(__dirname, '../golden/attn_causal_d64_s65.safetensors')),
      'is not a checkpoint of this program',
    ],
    [
      'a tensor under another name',
      () => replaced(whole, '"parameter.kda.beta"', '"parameter.kda.gama"'),
      'is damaged or of another kind: parameter.kda.beta is missing',
    ],
    [
      'another shape',
      () => replaced(whole, '"shape":[128,4]', '"shape":[4,128]'),
      'parameter.kda.beta has shape [4, 128] where the model has [128, 4]',
    ],
    [
      'another description',
      () => replaced(whole, '\\"heads\\":4', '\\"heads\\":0'),
      'its description of the run is incomplete',
    ],
  ])('%s', (_, bytes, message) => {
    writeFileSync(folder.file('bad'), bytes());
    expect(() => loadCheckpoint(folder.file('bad'), text)).toThrow(message);
  });

  test('missing', () => {
    expect(() => loadCheckpoint(folder.file('none'), text)).toThrow(/^--resume: cannot read .*none: ENOENT/);
  });

  test('made from another text', () => {
    writeFileSync(folder.file('other.txt'), 'Another text than the one of the checkpoint.\n'.repeat(200));
    const other = loadText(folder.file('other.txt'));
    expect(() => loadCheckpoint(folder.file('good'), other)).toThrow('was trained on another text than');
  });
});

function replaced(bytes: Buffer, from: string, to: string): Buffer {
  const copy = Buffer.from(bytes);
  copy.write(to, copy.indexOf(from));
  return copy;
}
