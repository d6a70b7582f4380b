/** Whether a device can do what the model needs. */
import {
  attentionBackward,
  attentionForward,
  kdaBackward,
  kdaForward,
  Tensor,
  type Device,
  type DeviceOption,
} from 'warpgrad';

/** Runs each operation once, on one token. @throws WarpgradError when the device is not there or lacks an operation */
export function tryDevice(option: DeviceOption): Device {
  const probe = Tensor.empty([1], { device: option });
  const { device } = probe;
  probe.dispose();
  const dtype = device === 'cpu' ? 'float32' : 'bfloat16'; // what warpgrad/tfjs runs in
  const x = Tensor.zeros([1, 1, 1, 32], { dtype, device });
  const g = Tensor.zeros([1, 1, 1, 32], { device });
  const beta = Tensor.zeros([1, 1, 1], { device });
  const { out, lse } = attentionForward(x, x, x);
  const attention = attentionBackward(out, x, x, x, out, lse);
  const kda = kdaForward(x, x, x, g, beta);
  const kdaGradients = kdaBackward(kda.out, kda.saved);
  kda.saved.dispose();
  const gradients: Tensor[] = [...Object.values({ ...attention }), ...Object.values({ ...kdaGradients })];
  for (const tensor of [x, g, beta, out, lse, kda.out, ...gradients]) tensor.dispose();
  return device;
}
