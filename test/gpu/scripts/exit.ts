import { attentionForward, Tensor } from '../../../lib';

// Ends with a second of work queued on the GPU and a read of its result pending.

const q = Tensor.from(new Float32Array(16384 * 16 * 128).fill(0.5), [1, 16384, 16, 128], {
  dtype: 'bfloat16',
  device: 'cuda',
});
let result = q;
for (let n = 0; n < 150; n++) result = attentionForward(result, q, q).out;
const pending = result.data();
pending.catch(() => {}); // cancelled by the end of the process
process.stdout.write('ready\n');
if (process.argv[2] === 'process.exit') process.exit(0);
