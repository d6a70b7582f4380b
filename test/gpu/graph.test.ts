import { attentionForward, memoryStats, Stream, Tensor, type Event, type Graph } from '../../lib';
import { expectBitwiseEqual } from '../support/compare';
import { CUDA, describeCuda, keepBusy } from '../support/cuda';
import { expectError } from '../support/expectError';
import { Random } from '../support/random';
import { toTensor } from '../support/run';

// Captured operations. Expected values: what the same calls give without a graph, bit for bit.

const draw = (label: string, shape: readonly number[]) => toTensor(new Random(label).tensor(shape), 'bfloat16', CUDA);
const SHAPE = [2, 300, 4, 64];

/** Two layers of attention with a temporary between them; allocates, converts and frees. */
function twoLayers(x: Tensor, stream: Stream): Tensor {
  const first = attentionForward(x, x, x, { causal: true, stream });
  const second = attentionForward(first.out, x, x, { stream });
  first.out.dispose();
  first.lse.dispose();
  second.lse.dispose();
  const result = second.out.to({ dtype: 'float32', stream });
  second.out.dispose();
  return result;
}

async function bitsWithoutGraph(x: Tensor, stream: Stream) {
  using result = twoLayers(x, stream);
  return result.data();
}

function captureLayers(x: Tensor, stream: Stream): { graph: Graph; result: Tensor } {
  let result: Tensor | undefined;
  const graph = stream.capture(() => {
    result = twoLayers(x, stream);
  });
  return { graph, result: result! };
}

describeCuda('a captured graph', () => {
  let stream: Stream;
  beforeAll(() => {
    stream = new Stream(CUDA);
  });

  test('owns its memory: nothing is allocated by a replay, all is free once graph, inputs and results are', async () => {
    await stream.synchronize();
    const before = memoryStats(CUDA);
    const x = draw('x', SHAPE);
    const { graph, result } = captureLayers(x, stream);
    x.dispose(); // the graph still reads it
    const captured = memoryStats(CUDA);
    for (let n = 0; n < 20; n++) graph.replay();
    await stream.synchronize();
    expect(memoryStats(CUDA).allocations).toBe(captured.allocations);
    using again = draw('x', SHAPE);
    expectBitwiseEqual('result', await result.data(), await bitsWithoutGraph(again, stream));
    again.dispose();
    graph.dispose();
    result.dispose();
    await stream.synchronize();
    expect({ ...memoryStats(CUDA), peakBytes: 0 }).toEqual({ ...before, peakBytes: 0 });
  });

  test('gives what the calls give, again and again, with new inputs', async () => {
    using x = draw('x', SHAPE);
    const { graph, result } = captureLayers(x, stream);
    for (const label of ['x', 'y', 'z', 'x']) {
      using input = draw(label, SHAPE);
      x.copyFrom(input, { stream });
      graph.replay();
      expectBitwiseEqual(label, await result.data(), await bitsWithoutGraph(input, stream));
    }
    graph.dispose();
    result.dispose();
  });

  test('may overwrite its own input: every replay takes a step', async () => {
    using x = draw('x', SHAPE);
    using y = draw('x', SHAPE);
    const step = (state: Tensor) => {
      const { out, lse } = attentionForward(state, y, y, { stream });
      state.copyFrom(out, { stream });
      out.dispose();
      lse.dispose();
    };
    using graph = stream.capture(() => step(x));
    using direct = draw('x', SHAPE);
    for (let n = 0; n < 4; n++) {
      graph.replay();
      step(direct);
      expectBitwiseEqual(`step ${n}`, await x.data(), await direct.data());
    }
  });

  test('overwrites a tensor of another stream after what that still reads', async () => {
    using x = draw('x', SHAPE);
    using y = draw('y', SHAPE);
    using load = draw('load', [1, 4096, 8, 128]);
    using graph = stream.capture(() => x.copyFrom(y, { stream }));
    using source = draw('x', SHAPE);
    const expected = await source.data();
    for (let n = 0; n < 5; n++) {
      x.copyFrom(source, { stream });
      keepBusy(Stream.current(CUDA), load);
      using copy = x.to({});
      graph.replay();
      expectBitwiseEqual(`copy ${n}`, await copy.data(), expected);
    }
  });

  test('of packed sequences: the plan is there before the first replay', async () => {
    using x = draw('packed', [500, 4, 128]);
    const cu = [0, 7, 7, 300, 480];
    const options = { causal: true, cuSeqlensQ: cu, cuSeqlensK: cu, stream };
    let result: Tensor | undefined;
    using graph = stream.capture(() => {
      result = attentionForward(x, x, x, options).out;
    });
    const direct = attentionForward(x, x, x, options).out; // with the plan that the capture made
    graph.replay();
    expectBitwiseEqual('out', await result!.data(), await direct.data());
  });

  test('runs between other work of the stream, in order', async () => {
    using x = draw('x', SHAPE);
    using y = draw('y', SHAPE);
    const expected = [await bitsWithoutGraph(x, stream), await bitsWithoutGraph(y, stream)];
    const { graph, result } = captureLayers(x, stream);
    using keep = draw('x', SHAPE);
    const reads = [];
    for (let n = 0; n < 10; n++) {
      x.copyFrom(n % 2 ? y : keep, { stream });
      graph.replay();
      reads.push(result.data()); // under way while the next replay is enqueued
    }
    (await Promise.all(reads)).forEach((read, n) => expectBitwiseEqual(`replay ${n}`, read, expected[n % 2]));
    graph.dispose();
    expectBitwiseEqual('after the graph', await result.data(), expected[1]);
    result.dispose();
  });

  test('a result read on another stream is read before the next replay', async () => {
    const other = new Stream(CUDA);
    using x = draw('x', SHAPE);
    using y = draw('y', SHAPE);
    const expected = await bitsWithoutGraph(x, stream);
    const { graph, result } = captureLayers(x, stream);
    using load = draw('load', [1, 4096, 8, 128]);
    graph.replay();
    for (let n = 0; n < 5; n++) attentionForward(load, load, load, { stream: other }).out.dispose();
    using copy = result.to({ dtype: 'int32', stream: other });
    using same = result.to({ dtype: 'float32', stream: other });
    x.copyFrom(y, { stream });
    graph.replay();
    expectBitwiseEqual('copy', await same.data(), expected);
    expect(copy.size).toBe(result.size);
    graph.dispose();
    result.dispose();
  });

  test('a result may outlive its graph, a graph its results', async () => {
    using x = draw('x', SHAPE);
    const expected = await bitsWithoutGraph(x, stream);
    const one = captureLayers(x, stream);
    one.graph.replay();
    one.graph.dispose();
    const two = captureLayers(x, stream);
    two.result.dispose();
    two.graph.replay();
    const filler = Array.from({ length: 20 }, (_, n) => draw(`filler ${n}`, SHAPE));
    await stream.synchronize();
    expectBitwiseEqual('result', await one.result.data(), expected);
    [...filler, one.result, two.graph].forEach((item) => item.dispose());
  });

  test('an empty capture', async () => {
    using graph = stream.capture(() => undefined);
    graph.replay();
    await stream.synchronize();
    expect(graph.device).toBe(CUDA);
  });
});

describeCuda('capture refuses', () => {
  let stream: Stream, other: Stream, x: Tensor, event: Event;
  beforeAll(() => {
    [stream, other] = [new Stream(CUDA), new Stream(CUDA)];
    x = draw('x', SHAPE);
    event = other.record();
  });

  afterEach(async () => {
    // Whatever went wrong in the capture, the stream works on.
    using result = twoLayers(x, stream);
    using again = twoLayers(x, stream);
    expectBitwiseEqual('after', await again.data(), await result.data());
  });

  test.each<[string, () => unknown]>([
    ['dataSync', () => twoLayers(x, stream).dataSync()],
    ['synchronizeSync', () => stream.synchronizeSync()],
    ['record', () => stream.record()],
    ['wait', () => stream.wait(event)],
    ['Tensor.from', () => Tensor.from([1], [1], { device: CUDA, stream })],
    ['to another device', () => twoLayers(x, stream).to({ device: 'cpu' })],
    ['a capture in a capture', () => stream.capture(() => undefined)],
    [
      'another stream that needs its work',
      () => attentionForward(attentionForward(x, x, x, { stream }).out, x, x, { stream: other }),
    ],
  ])('%s', (_, work) => {
    expectError(() => stream.capture(() => void work()), 'ERR_WARPGRAD_UNSUPPORTED', /captured/);
  });

  test.each<[string, () => Promise<unknown>]>([
    ['data', () => twoLayers(x, stream).data()],
    ['synchronize', () => stream.synchronize()],
  ])('%s: its promise rejects', async (_, work) => {
    let promise: Promise<unknown> | undefined;
    using graph = stream.capture(() => {
      promise = work();
      promise.catch(() => undefined);
    });
    await expect(promise).rejects.toMatchObject({ code: 'ERR_WARPGRAD_UNSUPPORTED' });
    graph.replay();
  });

  test('a replay in a capture', () => {
    using graph = stream.capture(() => undefined);
    expectError(() => stream.capture(() => graph.replay()), 'ERR_WARPGRAD_UNSUPPORTED', /captured/);
  });

  test('an asynchronous function', () => {
    const work: () => unknown = () => Promise.resolve();
    expectError(() => stream.capture(work), 'ERR_INVALID_ARG_TYPE', /must not be asynchronous/);
  });

  test('nothing that is thrown in it: it comes out as it is', () => {
    for (const thrown of [
      new Error('on purpose'),
      Object.assign(new RangeError('mine'), { code: 'ERR_OUT_OF_RANGE' }),
      3,
    ]) {
      let caught: unknown;
      try {
        stream.capture(() => {
          twoLayers(x, stream);
          throw thrown as Error;
        });
      } catch (error) {
        caught = error;
      }
      expect(caught).toBe(thrown);
    }
  });

  test('a replay after dispose', () => {
    const graph = stream.capture(() => undefined);
    graph.dispose();
    graph.dispose();
    expect(graph.disposed).toBe(true);
    expectError(() => graph.replay(), 'ERR_WARPGRAD_DISPOSED', 'replay: the graph was disposed');
  });
});
