import { Graph, Stream, Tensor } from '../../lib';
import { expectError } from '../support/expectError';

// Graphs need a GPU; what the CPU says instead.

describe('capture on the CPU', () => {
  test('is refused with the reason, and nothing is called', () => {
    const work = jest.fn();
    expectError(
      () => new Stream().capture(work),
      'ERR_WARPGRAD_UNSUPPORTED',
      'capture: a CPU stream has no graphs; capture is for streams of a GPU',
    );
    expect(work).not.toHaveBeenCalled();
  });

  test('needs a function', () => {
    expectError(
      () => new Stream().capture(undefined as never),
      'ERR_INVALID_ARG_TYPE',
      /must be a function, got undefined/,
    );
  });

  test('a Graph is made by capture alone', () => {
    const AnyGraph = Graph as unknown as new (...args: unknown[]) => unknown;
    expectError(() => new AnyGraph({}, new Stream()), 'ERR_INVALID_ARG_TYPE', /stream\.capture/);
  });
});

describe('elapsedSince', () => {
  test('is the time that the work between two events takes', async () => {
    const stream = new Stream();
    const source = Tensor.from(new Float32Array(4_000_000), undefined, { stream });
    const first = stream.record();
    for (let n = 0; n < 5; n++) source.to({ dtype: 'bfloat16', stream }).dispose();
    const second = stream.record();
    const third = stream.record();
    const started = performance.now();
    const total = await third.elapsedSince(first);
    expect(total).toBeGreaterThan(0);
    expect(total).toBeLessThan(performance.now() - started + 1000);
    const [work, rest] = [await second.elapsedSince(first), await third.elapsedSince(second)];
    expect(work + rest).toBeCloseTo(total, 6);
    expect(rest).toBeLessThan(work);
    expect(await first.elapsedSince(third)).toBeCloseTo(-total, 6);
    expect(await first.elapsedSince(first)).toBe(0);
  });

  test('between two streams', async () => {
    const [first, second] = [new Stream(), new Stream()];
    const start = first.record();
    await first.synchronize();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const end = second.record();
    expect(await end.elapsedSince(start)).toBeGreaterThan(15);
  });

  test('needs an event', async () => {
    await expect(new Stream().record().elapsedSince(3 as never)).rejects.toMatchObject({
      code: 'ERR_INVALID_ARG_TYPE',
      message: 'elapsedSince: earlier must be an Event, got 3',
    });
  });
});
