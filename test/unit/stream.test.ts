import { readdirSync } from 'node:fs';
import { attentionForward, Event, Stream, Tensor, WarpgradTypeError } from '../../lib';
import { expectError } from '../support/expectError';

// Expected values: the order in which work must run, seen in results and events.

/** Enqueues an attention forward that takes a good part of a second, and gives its result. */
function enqueueLongWork(stream: Stream): Tensor {
  using q = Tensor.from(new Float32Array(16 * 1024 * 64), [1, 1024, 16, 64], { stream });
  let out = q.contiguous();
  for (let n = 0; n < 8; n++) {
    const next = attentionForward(out, q, q, { stream });
    next.lse.dispose();
    out.dispose();
    out = next.out;
  }
  return out;
}

describe('Stream', () => {
  test('is of the CPU by default', () => {
    expect(new Stream().device).toBe('cpu');
    expect(new Stream().handle).toBe(0n);
    expect(Stream.current()).toBe(Stream.current('cpu'));
  });

  test('runs work in order: an event is reached after the work before it', async () => {
    const stream = new Stream();
    using out = enqueueLongWork(stream);
    const event = stream.record();
    expect(event).toBeInstanceOf(Event);
    expect(event.reached).toBe(false);
    await out.data();
    await stream.synchronize();
    expect(event.reached).toBe(true);
  });

  test('an event of an idle stream is reached', async () => {
    const stream = new Stream();
    const event = stream.record();
    await stream.synchronize();
    expect(event.reached).toBe(true);
  });

  test('synchronizeSync blocks until the work is done', () => {
    const stream = new Stream();
    using out = enqueueLongWork(stream);
    const event = stream.record();
    stream.synchronizeSync();
    expect(event.reached).toBe(true);
    expect(out.disposed).toBe(false);
  });

  test('two streams run side by side: short work on one does not wait for long work on the other', async () => {
    const [long, short] = [new Stream(), new Stream()];
    using out = enqueueLongWork(long);
    const end = long.record();
    using small = Tensor.from([1, 2, 3], [1, 3, 1, 1], { stream: short });
    using result = attentionForward(small, small, small, { stream: short }).out;
    await result.data();
    expect(end.reached).toBe(false);
    await out.data();
  });

  test('wait: work after it starts after the event of the other stream', async () => {
    const [first, second] = [new Stream(), new Stream()];
    using out = enqueueLongWork(first);
    const end = first.record();
    second.wait(end);
    using small = Tensor.from([1, 2, 3], [3], { stream: second });
    await small.data();
    expect(end.reached).toBe(true);
    expect(out.disposed).toBe(false);
  });

  test('work on a tensor that another stream makes is ordered after that', async () => {
    const [first, second] = [new Stream(), new Stream()];
    for (let n = 0; n < 20; n++) {
      using made = Tensor.from(
        Float32Array.from({ length: 300_000 }, (_, at) => at % 97),
        [1, 300_000, 1, 1],
        { stream: first },
      );
      using half = made.to({ dtype: 'float16', stream: first });
      using back = half.to({ dtype: 'float32', stream: second });
      const data = await back.data();
      expect(data.every((value, at) => value === at % 97)).toBe(true);
    }
  });

  test('a tensor may be disposed while work that reads it is queued', async () => {
    const stream = new Stream();
    using busy = enqueueLongWork(stream);
    const source = Tensor.from(Float32Array.of(1, 2, 3, 4), [1, 4, 1, 1], { stream });
    const { out, lse } = attentionForward(source, source, source, { window: [0, 0], stream });
    source.dispose();
    lse.dispose();
    // Memory that is freed too early would be handed out again here.
    const others = Array.from({ length: 50 }, () => Tensor.from([9, 9, 9, 9], [4], { stream: new Stream() }));
    expect([...(await out.data())]).toEqual([1, 2, 3, 4]);
    [...others, out].forEach((tensor) => tensor.dispose());
    expect(busy.disposed).toBe(false);
  });

  test('the event loop runs while an operation does', async () => {
    const stream = new Stream();
    const started = performance.now();
    using out = enqueueLongWork(stream);
    const enqueued = performance.now() - started;
    const end = stream.record();
    let ticksWhileBusy = 0;
    const timer = setInterval(() => (ticksWhileBusy += end.reached ? 0 : 1), 1);
    await out.data();
    clearInterval(timer);
    expect(ticksWhileBusy).toBeGreaterThan(2);
    expect(enqueued).toBeLessThan((performance.now() - started) / 2);
  });

  test('data of many operations may be awaited together', async () => {
    const tensors = Array.from({ length: 200 }, (_, n) => Tensor.from(Float32Array.of(n)));
    const read = await Promise.all(tensors.map((tensor) => tensor.data()));
    expect(read.map(([value]) => value)).toEqual(Array.from({ length: 200 }, (_, n) => n));
    tensors.forEach((tensor) => tensor.dispose());
  });

  test('more operations than the queue holds: the call waits, none is lost', async () => {
    const stream = new Stream();
    let tensor = Tensor.from([3], [1], { stream });
    for (let n = 0; n < 3000; n++) {
      const next = tensor.to({ dtype: n % 2 ? 'float32' : 'bfloat16', stream });
      tensor.dispose();
      tensor = next;
    }
    expect([...(await tensor.data())]).toEqual([3]);
    tensor.dispose();
  });
});

describe('many streams', () => {
  const numThreads = () => readdirSync('/proc/self/task').length;
  const MOST_RUNNERS = 64; // native/backends/cpu/runtime/stream_runners.h

  test('a loop that makes a stream a pass does not collect threads', () => {
    const before = numThreads();
    using tensor = Tensor.from([1, 2, 3]);
    for (let n = 0; n < 1000; n++) {
      const stream = new Stream();
      using copy = tensor.to({ dtype: 'float16', stream });
      if (n % 100 === 0) stream.synchronizeSync();
      expect(copy.disposed).toBe(false);
    }
    expect(numThreads() - before).toBeLessThanOrEqual(MOST_RUNNERS);
  });

  // More than there are threads for: those that run hold none while they wait for those that don't.
  test('streams that wait for streams that have no thread yet', async () => {
    const pairs = Array.from({ length: 2 * MOST_RUNNERS }, () => [new Stream(), new Stream()] as const);
    const gate = new Stream();
    using busy = enqueueLongWork(gate);
    const opened = gate.record();
    for (const [first] of pairs) first.wait(opened);
    const results = pairs.map(([first, second], n) => {
      using made = Tensor.from([n], [1], { stream: second });
      using half = made.to({ dtype: 'float16', stream: second });
      return half.to({ dtype: 'int32', stream: first });
    });
    expect(opened.reached).toBe(false);
    const values = await Promise.all(results.map((result) => result.data()));
    expect(busy.disposed).toBe(false);
    expect(values.map(([value]) => value)).toEqual(pairs.map((_, n) => n));
    results.forEach((tensor) => tensor.dispose());
  });

  test('a long chain of streams, each waiting for the one before', async () => {
    let last = Tensor.from([5]);
    for (let n = 0; n < 300; n++) {
      const next = last.to({ dtype: n % 2 ? 'float32' : 'int32', stream: new Stream() });
      last.dispose();
      last = next;
    }
    expect([...(await last.data())]).toEqual([5]);
    last.dispose();
  });
});

describe('refused', () => {
  test('an event that is none', () => {
    expectError(
      () => new Stream().wait({} as never),
      'ERR_INVALID_ARG_TYPE',
      'Stream.wait: event must come from stream.record()',
    );
  });

  test('a device that is none', () => {
    expect(() => new Stream('gpu' as never)).toThrow(WarpgradTypeError);
  });

  test('a stream option that is none', () => {
    expectError(
      () => Tensor.zeros([1], { stream: {} as never }),
      'ERR_INVALID_ARG_TYPE',
      'Tensor.zeros: stream must be a Stream, got Object',
    );
  });
});
