import { attentionForward, Stream, Tensor, type Device } from '../../../lib';

// The owner of memory that fromPointer took lives until the GPU is done with it; needs --expose-gc.

const device: Device = 'cuda:0';
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

/** The memory is a tensor's that outlives all; only the owner's life is watched. */
const memory = Tensor.zeros([1, 16384, 16, 128], { dtype: 'bfloat16', device });

function adopt(): Tensor {
  const owner = { name: 'owner' };
  registry.register(owner, undefined);
  return Tensor.fromPointer(memory.address, [1, 64, 16, 128], { dtype: 'bfloat16', device, owner });
}

async function main(): Promise<void> {
  const stream = Stream.current(device);
  for (let n = 0; n < 100; n++) attentionForward(memory, memory, memory); // a second or so
  const tensor = adopt();
  attentionForward(tensor, tensor, tensor);
  const end = stream.record();
  tensor.dispose();
  await settle();
  if (end.reached) throw new Error('the work was done too soon to tell');
  process.stdout.write(collected ? 'collected too soon\n' : 'alive\n');
  await stream.synchronize();
  await settle();
  process.stdout.write(collected ? 'collected\n' : 'never collected\n');
}

void main();
