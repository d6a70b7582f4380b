/**
 * The few operations of the model that are not attention or KDA, with gradients of their own: TensorFlow.js would derive the same
 * ones, but from many small operations, and from matrix products with transposed operands, which its wasm backend runs
 * ten times slower than an explicit transposition followed by a plain product.
 */
import * as tf from '@tensorflow/tfjs-core';

const RMS_EPSILON = 1e-6;

type Save = (tensors: tf.Tensor[]) => void;

interface Operation {
  readonly value: tf.Tensor;
  /** From the gradient of the value and the saved tensors to the gradients of the inputs. */
  gradFunc(dy: tf.Tensor, saved: tf.Tensor[]): tf.Tensor | tf.Tensor[];
}

function operation<Result extends tf.Tensor>(inputs: tf.Tensor[], run: (save: Save) => Operation): Result {
  return tf.customGrad((...args) => run(args.at(-1) as Save))(...inputs) as Result;
}

/** x [M, I] times w [I, O]. */
export function linear(x: tf.Tensor2D, w: tf.Tensor2D): tf.Tensor2D {
  return operation([x, w], (save) => {
    save([x, w]);
    const gradFunc = (dy: tf.Tensor, saved: tf.Tensor[]) => {
      const [x, w] = saved as [tf.Tensor, tf.Tensor];
      return [tf.matMul(dy, tf.transpose(w)), weightGradient(x, dy)];
    };
    return { value: tf.matMul(x, w), gradFunc };
  });
}

/** The same with a constant x that outlives the tape: rows that say which rows of w to add up. */
export function embed(x: tf.Tensor2D, w: tf.Tensor2D): tf.Tensor2D {
  return operation([w], () => ({ value: tf.matMul(x, w), gradFunc: (dy) => weightGradient(x, dy) }));
}

/** xᵀ dy, transposing the narrower of the two. */
function weightGradient(x: tf.Tensor, dy: tf.Tensor): tf.Tensor {
  if (x.shape[1]! <= dy.shape[1]!) return tf.matMul(tf.transpose(x), dy);
  return tf.transpose(tf.matMul(tf.transpose(dy), x));
}

/** Each row divided by its root mean square. No gain: the linear map that follows has one. */
export function rmsNorm<T extends tf.Tensor>(x: T): T {
  return operation([x], (save) => {
    const scale = tf.rsqrt(tf.add(tf.mean(tf.square(x), -1, true), RMS_EPSILON));
    const y = tf.mul(x, scale);
    save([y, scale]);
    const gradFunc = (dy: tf.Tensor, saved: tf.Tensor[]) => {
      const [y, scale] = saved as [tf.Tensor, tf.Tensor];
      return tf.mul(scale, tf.sub(dy, tf.mul(y, tf.mean(tf.mul(dy, y), -1, true))));
    };
    return { value: y, gradFunc };
  });
}

/** max(x, 0)². */
export function squaredRelu(x: tf.Tensor2D): tf.Tensor2D {
  return operation([x], (save) => {
    const positive = tf.relu(x);
    save([positive]);
    return { value: tf.square(positive), gradFunc: (dy, [positive]) => tf.mul(dy, tf.mul(positive, 2)) };
  });
}

/** The mean of −log softmax(logits) at the targets: constant one-hot rows that outlive the tape. */
export function crossEntropy(logits: tf.Tensor2D, targets: tf.Tensor2D): tf.Scalar {
  return operation([logits], (save) => {
    const shifted = tf.sub(logits, tf.max(logits, -1, true));
    const logProbabilities = tf.sub(shifted, tf.log(tf.sum(tf.exp(shifted), -1, true)));
    save([logProbabilities]);
    const rows = logits.shape[0];
    const gradFunc = (dy: tf.Tensor, [logProbabilities]: tf.Tensor[]) =>
      tf.mul(tf.sub(tf.exp(logProbabilities), targets), tf.div(dy, rows));
    return { value: tf.neg(tf.div(tf.sum(tf.sum(tf.mul(logProbabilities, targets), -1)), rows)), gradFunc };
  });
}
