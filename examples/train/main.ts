/** Trains the model and reports: `npm start`. */
import { existsSync, mkdirSync, mkdtempSync, rmdirSync } from 'node:fs';
import path from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import * as tf from '@tensorflow/tfjs';
import { setWasmPaths } from '@tensorflow/tfjs-backend-wasm';
import { Tensor, WarpgradError } from 'warpgrad';
import { measureBaselines } from './baselines';
import { loadCheckpoint, saveCheckpoint } from './checkpoint';
import { UsageError } from './errors';
import { Interruption } from './interruption';
import { HELP, parseOptions } from './options';
import type { Options } from './options';
import { placementsOn } from './placement';
import { Progress } from './progress';
import { nats, writeReport } from './report';
import { fileToWrite } from './safetensors';
import { loadText } from './text';
import type { Text } from './text';
import { newRun, Trainer } from './trainer';
import type { RunState } from './trainer';

const VALIDATION_INTERVAL = 100;
/** Windows of a validation during the training; the one at the end takes the whole split. */
const VALIDATION_WINDOWS = 16;

async function main(): Promise<void> {
  const options = parseOptions(process.argv.slice(2));
  if (options.help) {
    process.stdout.write(HELP);
    return;
  }
  const text = loadText(options.text);
  const state = startingState(options, text);
  const device = resolveDevice(options.device);
  makeFolder(options.out);
  if (options.save !== undefined) fileToWrite(options.save); // before minutes of training are spent
  await startTensorFlow();

  const interruption = new Interruption();
  const output = options.json ? process.stderr : process.stdout;
  const placements = placementsOn(device);
  const trainer = new Trainer(state, text, placements);
  const baselines = measureBaselines(text);
  const { train, validation, alphabet } = text;
  output.write(
    `text       ${text.name}: ${train.length.toLocaleString('en')} bytes to learn, ${validation.length.toLocaleString('en')} held out, ${alphabet.length} distinct\n` +
      `model      ${trainer.parameterCount.toLocaleString('en')} parameters, one KDA layer and one attention layer: ${placements.summary}\n` +
      `baselines  unigram ${nats(baselines.unigram)}, bigram ${nats(baselines.bigram)}\n`,
  );

  const speed = await runSteps(trainer, options, output, interruption);
  const checkpoint = options.save ?? path.join(options.out, 'checkpoint.safetensors');
  if (options.save !== undefined || interruption.requested) saveCheckpoint(checkpoint, state, text);
  if (state.step < options.steps) {
    output.write(`stopped after step ${state.step}; go on with: ${resumeCommand(checkpoint, options)}\n`);
    return;
  }
  interruption.end();
  await writeReport({ trainer, text, baselines, speed, options, output });
}

/** Up to the last step or an interruption; returns the tokens a second. */
async function runSteps(
  trainer: Trainer,
  options: Options,
  output: NodeJS.WriteStream,
  interruption: Interruption,
): Promise<number> {
  const { state } = trainer;
  const progress = new Progress(output, state.step, options.steps);
  while (state.step < options.steps && !interruption.requested) {
    const loss = trainer.trainStep();
    if (state.step % VALIDATION_INTERVAL === 0) {
      state.validationCurve.push({ step: state.step, loss: trainer.validate(VALIDATION_WINDOWS) });
    }
    progress.step(state.step, loss, state.validationCurve.at(-1)?.loss);
    // Lets signals and the terminal have their turn.
    await nextTurn();
  }
  progress.stop();
  return progress.tokensPerSecond(state.step);
}

function startingState({ resume, seed, steps }: Options, text: Text): RunState {
  if (resume === undefined) return newRun(text, seed);
  const state = loadCheckpoint(resume, text);
  if (state.step < steps) return state;
  throw new UsageError(`--resume: ${resume} has done ${state.step} steps already; ask for more with --steps N`);
}

/** Checked before the training starts. */
function resolveDevice(option: Options['device']): Tensor['device'] {
  try {
    const probe = Tensor.empty([1], { device: option });
    probe.dispose();
    return probe.device;
  } catch (cause) {
    if (!(cause instanceof WarpgradError)) throw cause;
    throw new UsageError(`--device ${option} can't be used: ${cause.message}`, { cause });
  }
}

/** Level by level: with `recursive`, Node tries for ever in a folder like /proc. */
function makeLevels(folder: string): void {
  if (existsSync(folder)) return;
  makeLevels(path.dirname(folder));
  mkdirSync(folder);
}

function makeFolder(folder: string): void {
  try {
    makeLevels(path.resolve(folder));
    rmdirSync(mkdtempSync(path.join(folder, '.warpgrad-'))); // it may be a file, or not writable
  } catch (cause) {
    throw new UsageError(`--out: cannot write to the folder ${folder}: ${(cause as Error).message}`, { cause });
  }
}

async function startTensorFlow(): Promise<void> {
  setWasmPaths(`${path.dirname(require.resolve('@tensorflow/tfjs-backend-wasm'))}/`);
  await tf.setBackend('wasm');
  await tf.ready();
}

function resumeCommand(checkpoint: string, { text, steps }: Options): string {
  const rest = text === undefined ? '' : ` --text ${text}`;
  return `npm start -- --resume ${checkpoint}${rest} --steps ${steps}`;
}

// A reader that has seen enough, such as `head`, does not end the training.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
});

main().catch((error: unknown) => {
  process.stderr.write(
    error instanceof UsageError ? `error: ${error.message}\n` : `${(error as Error).stack ?? error}\n`,
  );
  process.exitCode = 1;
});
