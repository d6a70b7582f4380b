import { attentionForward, Stream, Tensor } from '../../../lib';

// How long the owner of memory that fromPointer took lives; needs --expose-gc.

const collect = globalThis.gc!;
const turn = () => new Promise((resolve) => setImmediate(resolve));
let collected = false;
const registry = new FinalizationRegistry(() => (collected = true));

async function settle(): Promise<void> {
  for (let n = 0; n < 5; n++) {
    collect();
    await turn();
  }
}

async function expectAlive(what: string): Promise<void> {
  await settle();
  if (collected) throw new Error(`collected ${what}`);
  process.stdout.write(`alive ${what}\n`);
}

/** The memory is a tensor's that outlives all; only the owner's life is watched. */
const memory = Tensor.from(new Float32Array(2048 * 8 * 64), [1, 2048, 8, 64]);

function adopt(): Tensor {
  const owner = { name: 'owner' };
  registry.register(owner, undefined);
  return Tensor.fromPointer(memory.address, memory.shape, { owner });
}

async function main(): Promise<void> {
  const tensor = adopt();
  await expectAlive('with the tensor');
  const view = tensor.slice(1, 0, 1);
  tensor.dispose();
  await expectAlive('with a view');
  const stream = new Stream();
  for (let n = 0; n < 20; n++) attentionForward(memory, memory, memory, { stream });
  attentionForward(view, view, view, { stream });
  const end = stream.record();
  view.dispose();
  await settle();
  if (end.reached) throw new Error('the work was done too soon to tell');
  await expectAlive('with queued work');
  await stream.synchronize();
  await settle();
  process.stdout.write(collected ? 'collected\n' : 'never collected\n');
}

void main();
