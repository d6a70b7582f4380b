import { attentionForward, Stream, Tensor, type Device, type WarpgradError } from '../../../lib';

// Reads far behind the end of an allocation, which ends the CUDA context; prints what each call says then.

const device: Device = 'cuda:0';

async function say(call: () => unknown): Promise<void> {
  try {
    await call();
    process.stdout.write('nothing\n');
  } catch (error) {
    const { code, message } = error as WarpgradError;
    process.stdout.write(`${code} ${message}\n`);
  }
}

async function main(): Promise<void> {
  const stream = Stream.current(device);
  const owner = Tensor.zeros([1, 1, 1, 64], { dtype: 'bfloat16', device });
  const q = owner.contiguous();
  await stream.synchronize();
  Tensor.fromPointer(owner.address, [4], { device, strides: [2 ** 38], owner }).to({ dtype: 'bfloat16' });
  await say(() => stream.synchronize());
  await say(() => stream.synchronize());
  await say(() => attentionForward(q, q, q));
  await say(() => Tensor.zeros([1], { device }));
  await say(() => owner.data());
  await say(() => new Stream(device));
}

void main();
