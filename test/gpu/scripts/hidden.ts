import { Stream, systemInfo, Tensor } from '../../../lib';

const sum = Array.from(Tensor.from([1, 2, 3], [3], { device: 'auto' }).dataSync()).reduce((a, b) => a + b);
const { available, reason } = systemInfo().cuda;
process.stdout.write(JSON.stringify({ available, reason, auto: new Stream('auto').device, sum }));
