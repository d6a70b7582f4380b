import {
  attentionBackward,
  attentionForward,
  configure,
  Event,
  Graph,
  kdaBackward,
  kdaForward,
  KdaSaved,
  Stream,
  Tensor,
} from '../../lib';

// Every use of a revoked proxy throws, even Array.isArray: arguments are refused with the codes of this package all the same.

test('a revoked proxy in place of anything', () => {
  const revoked = (() => {
    const { proxy, revoke } = Proxy.revocable([], {});
    revoke();
    return proxy as never;
  })();
  const [x, beta] = [Tensor.zeros([1, 2, 1, 8]), Tensor.zeros([1, 2, 1])];
  const packed = Tensor.zeros([2, 1, 8]);
  const { out, lse } = attentionForward(x, x, x);
  const { saved } = kdaForward(x, x, x, x, beta);
  const calls: Record<string, () => unknown> = {
    q: () => attentionForward(revoked, x, x),
    options: () => attentionForward(x, x, x, revoked),
    window: () => attentionForward(x, x, x, { window: revoked }),
    causal: () => attentionForward(x, x, x, { causal: revoked }),
    sink: () => attentionForward(x, x, x, { sink: revoked }),
    stream: () => attentionForward(x, x, x, { stream: revoked }),
    softcap: () => attentionForward(x, x, x, { softcap: revoked }),
    cuSeqlensQ: () => attentionForward(packed, packed, packed, { cuSeqlensQ: revoked, cuSeqlensK: [0, 2] }),
    dOut: () => attentionBackward(revoked, x, x, x, out, lse),
    beta: () => kdaForward(x, x, x, x, revoked),
    'options of kdaForward': () => kdaForward(x, x, x, x, beta, revoked),
    gate: () => kdaForward(x, x, x, x, beta, { gate: revoked }),
    dtBias: () => kdaForward(x, x, x, x, beta, { gate: { lowerBound: -1, dtBias: revoked } }),
    stateLayout: () => kdaForward(x, x, x, x, beta, { stateLayout: revoked }),
    saved: () => kdaBackward(x, revoked),
    'options of kdaBackward': () => kdaBackward(x, saved, revoked),
    data: () => Tensor.from(revoked),
    'nested data': () => Tensor.from([[1], revoked]),
    shape: () => Tensor.zeros(revoked),
    'options of a tensor': () => Tensor.zeros([1], revoked),
    dtype: () => Tensor.zeros([1], { dtype: revoked }),
    device: () => Tensor.zeros([1], { device: revoked }),
    strides: () => Tensor.fromPointer(x.address, [1], { strides: revoked }),
    address: () => Tensor.fromPointer(revoked, [1]),
    view: () => x.view(revoked),
    dim: () => x.slice(revoked, 0, 1),
    to: () => x.to(revoked),
    copyFrom: () => x.copyFrom(revoked),
    wait: () => Stream.current().wait(revoked),
    capture: () => Stream.current().capture(revoked),
    configure: () => configure(revoked),
    cpuThreads: () => configure({ cpuThreads: revoked }),
  };
  for (const [name, call] of Object.entries(calls)) {
    let code = 'nothing thrown';
    try {
      call();
    } catch (error) {
      code = String((error as NodeJS.ErrnoException).code);
    }
    expect({ name, code }).toEqual({ name, code: expect.stringMatching(/^ERR_(INVALID_ARG_TYPE|OUT_OF_RANGE)$/) });
  }
});

test('is an instance of no class, like whatever has only the prototype of one', () => {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  for (const made of [Tensor, Graph, Event, Stream, KdaSaved]) {
    const only = Object.create(made.prototype) as unknown;
    const answers = [proxy instanceof made, only instanceof made];
    expect({ class: made.name, answers }).toEqual({ class: made.name, answers: [false, false] });
  }
  expect(Tensor.zeros([1])).toBeInstanceOf(Tensor);
});
