import { attentionForward, Tensor, type Device } from '../../../lib';

const VALUES = Float32Array.from({ length: 2 * 300 * 4 * 64 }, (_, at) => Math.sin(at * at));

/** Causal attention of the same numbers on a device. */
export function attend(device: Device): Tensor {
  const q = Tensor.from(VALUES, [2, 300, 4, 64], { dtype: 'bfloat16', device });
  return attentionForward(q, q, q, { causal: true }).out.to({ dtype: 'float32' });
}
