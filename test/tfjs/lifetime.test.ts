import * as tf from '@tensorflow/tfjs';
import { memoryStats, Stream, Tensor } from '../../lib';
import { attention, kda, kdaWithState } from '../../lib/integrations/tfjs';
import { Random } from '../support/random';
import { randomTensor } from './support';

const random = new Random('lifetime');
const operands = () =>
  ['q', 'k', 'v'].map(() => randomTensor(random, [1, 12, 2, 8])) as [tf.Tensor, tf.Tensor, tf.Tensor];
const kdaOperands = () => {
  const g = randomTensor(random, [1, 12, 2, 8], () => -random.uniform());
  return [...operands(), g, randomTensor(random, [1, 12, 2], () => random.uniform())] as const;
};

/** Runs `body` and expects as many tensors of both libraries afterwards as before, and as many bytes. */
function expectNothingLeft(body: () => void): void {
  const count = () => ({
    tfjs: tf.memory().numTensors,
    bytes: tf.memory().numBytes,
    warpgrad: memoryStats('cpu').liveBytes,
  });
  const before = count();
  tf.tidy(body);
  expect(count()).toEqual(before);
}

describe('nothing is left', () => {
  test('of a call without gradients', () => {
    expectNothingLeft(() => {
      attention(...operands(), { device: 'cpu' });
      kda(...kdaOperands(), { device: 'cpu' });
      kdaWithState(...kdaOperands(), { device: 'cpu', dtype: 'bfloat16' });
    });
  });

  test('of a call with gradients', () => {
    expectNothingLeft(() => {
      tf.grads((q, k, v) => tf.sum(attention(q, k, v, { device: 'cpu' })))(operands());
      const sum = (...x: tf.Tensor[]) => {
        const { out, finalState } = kdaWithState(x[0], x[1], x[2], x[3], x[4], { device: 'cpu' });
        return tf.add(tf.sum(out), tf.sum(finalState));
      };
      tf.grads(sum)([...kdaOperands()]);
    });
  });

  test('of a call whose arguments are refused', () => {
    expectNothingLeft(() => {
      const [q, k] = operands();
      const narrow = randomTensor(random, [1, 12, 2, 4]);
      expect(() => attention(q, narrow, k)).toThrow('attentionForward: k must have shape');
      expect(() => tf.grad((x) => tf.sum(attention(x, narrow, k)))(q)).toThrow('attentionForward: k must have shape');
    });
  });

  // The tape that it is on ends without a backward pass through it; the next call on another tape shows that.
  test('of a recorded call that the loss does not depend on, after the next call', () => {
    expectNothingLeft(() => {
      const [q, k, v] = operands();
      const ignoring = (x: tf.Tensor) => {
        attention(x, k, v, { device: 'cpu' });
        return tf.sum(x);
      };
      tf.grad(ignoring)(q);
      attention(q, k, v, { device: 'cpu' });
    });
  });
});

test('variables train through both operations', () => {
  tf.tidy(() => {
    const [q, k, v, g, beta] = kdaOperands();
    const target = randomTensor(random, [1, 12, 2, 8]);
    const variables = [q, k, v].map((tensor) => tf.variable(tensor)) as [tf.Variable, tf.Variable, tf.Variable];
    const loss = () =>
      tf.losses.meanSquaredError<tf.Tensor, tf.Scalar>(
        target,
        tf.add(
          attention(...variables, { device: 'cpu', causal: true }),
          kda(...variables, g, beta, { device: 'cpu', qkL2Norm: true }),
        ),
      );
    const before = loss().dataSync()[0];
    const optimizer = tf.train.sgd(0.5);
    for (let step = 0; step < 20; step++) optimizer.minimize(loss, false, variables);
    expect(loss().dataSync()[0]).toBeLessThan(0.9 * before);
  });
});

test('gradients of gradients are refused, not wrong', () => {
  const [q, k, v] = operands();
  const inner = tf.grad((x) => tf.sum(attention(x, k, v, { device: 'cpu' })));
  expect(() => tf.grad((x) => tf.sum(inner(x)))(q)).toThrow('attention: gradients of gradients are not supported');
});

describe('arguments', () => {
  const [q, k, v] = operands();

  test.each<[string, () => unknown, string]>([
    ['an array', () => [1, 2], 'attention: k must be a tensor of TensorFlow.js, got [1, 2]'],
    [
      'one of the other kind',
      () => Tensor.zeros([1]),
      'attention: k must be a tensor of TensorFlow.js, got one of warpgrad',
    ],
    ['nothing', () => undefined, 'attention: k must be a tensor of TensorFlow.js, got undefined'],
    ['integers', () => tf.cast(k, 'int32'), 'attention: k must be a float32 tensor, got int32'],
  ])('%s for a tensor', (_, wrong, message) => {
    const call = () => attention(q, wrong() as tf.Tensor, v);
    expect(call).toThrow(message);
    expect(call).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
  });

  test('a wrong device or dtype', () => {
    expect(() => attention(q, k, v, { device: 'tpu' as 'cpu' })).toThrow("attention: device must be 'cpu', 'cuda'");
    for (const dtype of ['int8', 'int32']) {
      expect(() => attention(q, k, v, { dtype: dtype as 'float32' })).toThrow(
        `attention: dtype must be one of float32, float16, bfloat16, got '${dtype}'`,
      );
    }
  });

  test('a flag that only the backward pass needs', () => {
    expect(() => attention(q, k, v, { deterministic: 'yes' as never })).toThrow(
      'attention: deterministic must be true or',
    );
  });

  test('unknown options', () => {
    expect(() => attention(q, k, v, { casual: true } as object)).toThrow("unknown option 'casual'");
    expect(() => kda(...kdaOperands(), { gates: {} } as object)).toThrow("unknown option 'gates'");
  });

  test('the final state, of which kda gives none', () => {
    expect(() => kda(...kdaOperands(), { outputFinalState: true } as object)).toThrow(
      /^kda: unknown option 'outputFinalState'; kdaWithState gives the final state$/,
    );
  });

  // It would run there and be waited for at once.
  test('a stream', () => {
    const stream = new Stream();
    expect(() => attention(q, k, v, { stream } as object)).toThrow(
      "attention: unknown option 'stream'; the options are",
    );
    expect(() => kda(...kdaOperands(), { stream } as object)).toThrow("kda: unknown option 'stream'; the options are");
  });

  test('null', () => {
    const nothing = null as unknown as undefined;
    const without = (options: object) => () => kda(...kdaOperands(), options);
    expect(() => attention(q, k, v, null as never)).toThrow('attention: options must be an object, got null');
    expect(without(null as never)).toThrow('kda: options must be an object, got null');
    expect(without({ device: nothing })).toThrow("kda: device must be 'cpu', 'cuda', 'cuda:N' or 'auto', got null");
    expect(without({ dtype: nothing })).toThrow('kda: dtype must be one of float32, float16, bfloat16, got null');
    expect(without({ gate: nothing })).toThrow('kda: gate: options must be an object, got null');
    expect(() => attention(q, k, v, { sink: nothing })).toThrow('attention: sink must be a tensor of TensorFlow.js');
    expect(without({ initialState: nothing })).toThrow('kda: initialState must be a tensor of TensorFlow.js');
    expect(without({ gate: { aLog: nothing } })).toThrow('kda: aLog must be a tensor of TensorFlow.js');
  });
});
