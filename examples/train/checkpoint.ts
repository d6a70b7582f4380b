/** Checkpoints: parameters and optimizer state as tensors of a safetensors file, the rest of the run as its metadata. */
import { readFileSync } from 'node:fs';
import { UsageError } from './errors';
import { parameterShapes } from './model';
import type { ModelConfig } from './model';
import { Random } from './random';
import { parseSafetensors, writeSafetensors } from './safetensors';
import type { Archive, StoredTensor } from './safetensors';
import type { Text } from './text';
import type { RunState } from './trainer';

const FORMAT = 'warpgrad-train-1';
const GROUPS = ['parameter', 'first', 'second'] as const;

/** The part of a run that is no tensor. */
interface RunRecord extends Pick<RunState, 'config' | 'seed' | 'step' | 'trainCurve' | 'validationCurve'> {
  readonly random: readonly number[];
  readonly textSha256: string;
}

export function saveCheckpoint(path: string, state: RunState, text: Text): void {
  const { config, seed, step, random, trainCurve, validationCurve, parameters, moments } = state;
  const record: RunRecord = {
    ...{ config, seed, step, trainCurve, validationCurve },
    ...{ random: random.state, textSha256: text.sha256 },
  };
  const groups = { parameter: parameters, first: moments.first, second: moments.second };
  const tensors: Record<string, StoredTensor> = {};
  for (const [name, shape] of Object.entries(parameterShapes(config))) {
    for (const group of GROUPS) tensors[`${group}.${name}`] = { shape, data: groups[group][name] };
  }
  writeSafetensors(path, { metadata: { format: FORMAT, run: JSON.stringify(record) }, tensors });
}

/** Reads a checkpoint and checks that it is whole and was made from the same text. */
export function loadCheckpoint(path: string, text: Text): RunState {
  const { metadata, tensors } = readArchive(path);
  if (metadata['format'] !== FORMAT) throw new UsageError(`--resume: ${path} is not a checkpoint of this program`);
  const record = parseRecord(path, metadata['run']);
  if (record.textSha256 !== text.sha256) {
    throw new UsageError(
      `--resume: ${path} was trained on another text than ${text.name}; give that text with --text, ` +
        'or start afresh without --resume',
    );
  }
  const shapes = parameterShapes(record.config);
  const read = (group: (typeof GROUPS)[number]) =>
    Object.fromEntries(
      Object.entries(shapes).map(([name, shape]) => [name, take(path, tensors, `${group}.${name}`, shape)]),
    );
  const { textSha256: _, random, ...rest } = record;
  return {
    ...rest,
    random: new Random(random),
    parameters: read('parameter'),
    moments: { first: read('first'), second: read('second') },
  };
}

function readArchive(path: string): Archive {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (cause) {
    throw new UsageError(`--resume: cannot read ${path}: ${(cause as Error).message}`, { cause });
  }
  try {
    return parseSafetensors(bytes);
  } catch (cause) {
    throw damaged(path, (cause as Error).message);
  }
}

function parseRecord(path: string, json: string | undefined): RunRecord {
  let record: Partial<RunRecord>;
  try {
    record = JSON.parse(json ?? '') as Partial<RunRecord>;
  } catch {
    throw damaged(path, 'its description of the run is not JSON');
  }
  const { config, seed, step, random, trainCurve, validationCurve, textSha256 } = record;
  const complete =
    isConfig(config) &&
    [seed, step].every(Number.isSafeInteger) &&
    [random, trainCurve, validationCurve].every(Array.isArray) &&
    typeof textSha256 === 'string';
  if (!complete) throw damaged(path, 'its description of the run is incomplete');
  return record as RunRecord;
}

function isConfig(config: Partial<ModelConfig> | undefined): config is ModelConfig {
  const { vocabulary, width, heads, hidden, gateRank, lookback } = config ?? {};
  return [vocabulary, width, heads, hidden, gateRank, lookback].every(
    (count) => Number.isSafeInteger(count) && count! > 0,
  );
}

function take(path: string, tensors: Archive['tensors'], name: string, shape: readonly number[]): Float32Array {
  const tensor = tensors[name];
  if (!tensor) throw damaged(path, `${name} is missing`);
  if (tensor.shape.join() !== shape.join()) {
    throw damaged(path, `${name} has shape [${tensor.shape.join(', ')}] where the model has [${shape.join(', ')}]`);
  }
  return tensor.data;
}

function damaged(path: string, reason: string): UsageError {
  return new UsageError(`--resume: ${path} is damaged or of another kind: ${reason}`);
}
