import { boundToThread, hideMark } from './bound-to-thread';
import { cudaIndex, resolveDevice, type Device, type DeviceOption } from './device';
import { fromNative, native, WarpgradError, WarpgradRangeError, WarpgradTypeError } from './errors';
import { addon, type NativeEvent, type NativeGraph, type NativeStream } from './native';
import { describe, expectKnownOptions } from './validate';

/** The addon's half of a stream. Internal. */
export let nativeStream: (stream: Stream) => NativeStream;
let makeEvent: (handle: NativeEvent, stream: Stream) => Event;
let makeGraph: (handle: NativeGraph, stream: Stream) => Graph;
let nativeEvent: (event: Event) => NativeEvent;

const NOT_CLONEABLE = {
  event: boundToThread('an Event of warpgrad'),
  graph: boundToThread('a Graph of warpgrad'),
  stream: boundToThread('a Stream of warpgrad'),
};

/** A position in a stream, reached once all work enqueued before it is done. Made by `stream.record()`. */
export class Event {
  readonly device: Device;
  readonly #handle: NativeEvent;
  /** @internal */
  readonly notCloneable = NOT_CLONEABLE.event;
  readonly #stream: Stream;

  /** Made by this package, not merely something with the prototype. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && #handle in value;
  }

  private constructor(handle: NativeEvent, stream: Stream) {
    if (!(handle instanceof addon.NativeEvent)) throw new WarpgradTypeError('Event: made by stream.record()');
    this.#handle = handle;
    this.#stream = stream;
    this.device = stream.device;
    Object.freeze(this);
  }

  /** Whether the work before the event is done. */
  get reached(): boolean {
    return this.#handle.reached();
  }

  /**
   * Milliseconds on the device between an earlier event of it and this one. Resolves once both streams have done the work
   * enqueued so far; rejects as their `synchronize` does.
   */
  async elapsedSince(earlier: Event): Promise<number> {
    const caller = 'elapsedSince';
    if (!(earlier instanceof Event)) {
      throw new WarpgradTypeError(`${caller}: earlier must be an Event, got ${describe(earlier)}`);
    }
    if (earlier.device !== this.device) {
      throw new WarpgradRangeError(`${caller}: earlier must be of ${this.device}, got one of ${earlier.device}`);
    }
    await this.#stream.synchronize();
    if (earlier.#stream !== this.#stream) await earlier.#stream.synchronize();
    return native(() => this.#handle.millisecondsSince(earlier.#handle));
  }

  static {
    makeEvent = (handle, stream) => new Event(handle, stream);
    nativeEvent = (event) => event.#handle;
  }
}
hideMark(Event);

/**
 * Operations that `stream.capture()` recorded, to be run again as one. Tensors made in the capture belong to the graph:
 * every replay writes their elements anew, in place. Inputs are read where they lie: give them new elements with
 * `copyFrom`. The memory of all of them lives as long as the graph or the tensor does.
 */
export class Graph {
  readonly #stream: Stream;
  #handle: NativeGraph | null;
  /** @internal */
  readonly notCloneable = NOT_CLONEABLE.graph;

  /** Made by this package, not merely something with the prototype. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && #handle in value;
  }

  private constructor(handle: NativeGraph, stream: Stream) {
    if (!(handle instanceof addon.NativeGraph)) throw new WarpgradTypeError('Graph: made by stream.capture()');
    this.#handle = handle;
    this.#stream = stream;
  }

  get device(): Device {
    return this.#stream.device;
  }

  get disposed(): boolean {
    return this.#handle === null;
  }

  /** Enqueues all captured operations on the stream that they were captured on, and returns at once. */
  replay(): void {
    const handle = this.#handle;
    if (!handle) throw new WarpgradError('ERR_WARPGRAD_DISPOSED', 'replay: the graph was disposed');
    native(() => handle.replay());
  }

  /** Gives the graph up; replays that are enqueued still run. Harmless when repeated. */
  dispose(): void {
    this.#handle?.release();
    this.#handle = null;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  static {
    makeGraph = (handle, stream) => new Graph(handle, stream);
  }
}
hideMark(Graph);

const defaultStreams = new Map<Device, Stream>();

/**
 * A queue of operations on one device, run in order. Operations enqueue and return at once; up to 1,024 may wait on a CPU
 * stream, a call beyond that waits for the oldest. Streams of one device run side by side. Work on a tensor that another
 * stream produces is ordered after that production by itself.
 */
export class Stream {
  readonly device: Device;
  readonly #handle: NativeStream;
  /** @internal */
  readonly notCloneable = NOT_CLONEABLE.stream;

  /** Made by this package, not merely something with the prototype. */
  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === 'object' && value !== null && #handle in value;
  }

  constructor(device: DeviceOption = 'cpu') {
    this.device = resolveDevice('Stream', device);
    this.#handle = native(() => new addon.NativeStream(this.device !== 'cpu', Math.max(0, cudaIndex(this.device))));
    Object.freeze(this);
  }

  /** The stream that operations of this environment use on a device when no `stream` is given. */
  static current(device: DeviceOption = 'cpu'): Stream {
    return currentStream(resolveDevice('Stream.current', device));
  }

  /** Resolves once all work enqueued so far is done; rejects with its first failure that was not reported yet. */
  async synchronize(): Promise<void> {
    try {
      await this.#handle.synchronize();
    } catch (error) {
      throw fromNative(error);
    }
  }

  /** Like `synchronize`, blocking the thread. */
  synchronizeSync(): void {
    native(() => this.#handle.synchronizeSync());
  }

  /** Marks the current end of the queue. */
  record(): Event {
    return makeEvent(
      native(() => this.#handle.record()),
      this,
    );
  }

  /** Makes work enqueued from now on start after the event. Does not block. */
  wait(event: Event): void {
    if (!(event instanceof Event)) throw new WarpgradTypeError('Stream.wait: event must come from stream.record()');
    if (event.device !== this.device) {
      throw new WarpgradRangeError(`Stream.wait: event must be of ${this.device}, got one of ${event.device}`);
    }
    native(() => this.#handle.wait(nativeEvent(event)));
  }

  /**
   * Calls `enqueueWork` and records the operations that it enqueues on this stream, without running them: a CUDA graph.
   * For sequences of short operations: a replay costs one call. Their results hold nothing until the first replay.
   *
   * Shapes and options are those of the capture. Nothing in it may wait for the stream or move data from or to the host
   * (`data`, `synchronize`, `record`, `wait`, `Tensor.from`, `to` another device). An error ends the capture and is thrown.
   * @throws WarpgradError with ERR_WARPGRAD_UNSUPPORTED on a CPU stream, inside another capture of this stream, and for
   * what can't be captured; WarpgradTypeError when `enqueueWork` is asynchronous
   */
  capture(enqueueWork: () => void): Graph {
    if (typeof enqueueWork !== 'function') {
      throw new WarpgradTypeError(`capture: enqueueWork must be a function, got ${describe(enqueueWork)}`);
    }
    let thrown: { readonly error: unknown } | undefined;
    const call = () => {
      try {
        const result: unknown = enqueueWork();
        if (typeof (result as PromiseLike<unknown> | undefined)?.then !== 'function') return;
        throw new WarpgradTypeError('capture: enqueueWork must not be asynchronous, got one that gives a promise');
      } catch (error) {
        thrown = { error };
        throw error;
      }
    };
    try {
      return makeGraph(this.#handle.capture(call), this);
    } catch (error) {
      throw thrown ? thrown.error : fromNative(error); // what the caller threw is passed on untouched
    }
  }

  /** The driver's handle, for other addons; 0n on the CPU, where there is none. */
  get handle(): bigint {
    return this.#handle.handle();
  }

  static {
    nativeStream = (stream) => stream.#handle;
  }
}
hideMark(Stream);

function currentStream(device: Device): Stream {
  let stream = defaultStreams.get(device);
  if (!stream) {
    stream = new Stream(device);
    defaultStreams.set(device, stream);
  }
  return stream;
}

/** Checks a `stream` option; the device's current stream when absent. Internal. */
export function resolveStream(caller: string, stream: unknown, device: Device): Stream {
  if (stream === undefined) return currentStream(device);
  if (!(stream instanceof Stream))
    throw new WarpgradTypeError(`${caller}: stream must be a Stream, got ${describe(stream)}`);
  if (stream.device !== device) {
    throw new WarpgradRangeError(`${caller}: stream must be on ${device}, got one on ${stream.device}`);
  }
  return stream;
}

const TENSOR_OPTIONS = ['dtype', 'device', 'stream'];

/** Refuses options that making and converting tensors does not have. @throws WarpgradTypeError */
export function expectTensorOptions(caller: string, options: unknown): void {
  // A stream has a device, and would be taken for the option of that name.
  if (options instanceof Stream) throw new WarpgradTypeError(`${caller}: options must be { stream }, got a Stream`);
  expectKnownOptions(caller, options, TENSOR_OPTIONS);
}
