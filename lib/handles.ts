/** Native halves of tensors and their end. Internal. */
import { addon, type NativeTensor } from './native';

/** Of disposed tensors, to be filled again: that costs a fraction of making one. */
const released: NativeTensor[] = [];
const MAX_RELEASED = 256;

export const takeReleased = (): NativeTensor | undefined => released.pop();

export function release(handle: NativeTensor): void {
  addon.tensorRelease(handle);
  if (released.length < MAX_RELEASED) released.push(handle);
}

/**
 * The native half of a tensor that several hold. Nothing but they and the tensor, until it is disposed, refers to it: what is
 * never let go is freed by the collector.
 */
export interface TensorShare {
  readonly handle: NativeTensor;
  holders: number;
}

export function letGoShare(share: TensorShare): void {
  if (--share.holders === 0) release(share.handle);
}
