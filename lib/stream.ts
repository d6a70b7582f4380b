import { cudaIndex, resolveDevice, type Device, type DeviceOption } from './device';
import { fromNative, native, WarpgradRangeError, WarpgradTypeError } from './errors';
import { addon, type NativeEvent, type NativeStream } from './native';

/** The addon's half of a stream. Internal. */
export let nativeStream: (stream: Stream) => NativeStream;
let makeEvent: (handle: NativeEvent, device: Device) => Event;
let nativeEvent: (event: Event) => NativeEvent;

/** A position in a stream, reached once all work enqueued before it is done. Made by `stream.record()`. */
export class Event {
  readonly device: Device;
  readonly #handle: NativeEvent;

  private constructor(handle: NativeEvent, device: Device) {
    if (!(handle instanceof addon.NativeEvent)) throw new WarpgradTypeError('Event: made by stream.record()');
    this.#handle = handle;
    this.device = device;
    Object.freeze(this);
  }

  /** Whether the work before the event is done. */
  get reached(): boolean {
    return this.#handle.reached();
  }

  static {
    makeEvent = (handle, device) => new Event(handle, device);
    nativeEvent = (event) => event.#handle;
  }
}

const defaultStreams = new Map<Device, Stream>();

/**
 * A queue of operations on one device, run in order. Operations enqueue and return at once; up to 1,024 may wait on a CPU
 * stream, a call beyond that waits for the oldest. Streams of one device run side by side. Work on a tensor that another
 * stream produces is ordered after that production by itself.
 */
export class Stream {
  readonly device: Device;
  readonly #handle: NativeStream;

  constructor(device: DeviceOption = 'cpu') {
    this.device = resolveDevice('Stream', device);
    this.#handle = native(() => new addon.NativeStream(this.device !== 'cpu', Math.max(0, cudaIndex(this.device))));
    Object.freeze(this);
  }

  /** The stream that operations of this environment use on a device when no `stream` is given. */
  static current(device: DeviceOption = 'cpu'): Stream {
    const resolved = resolveDevice('Stream.current', device);
    let stream = defaultStreams.get(resolved);
    if (!stream) {
      stream = new Stream(resolved);
      defaultStreams.set(resolved, stream);
    }
    return stream;
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
      this.device,
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

  /** The driver's handle, for other addons; 0n on the CPU, where there is none. */
  get handle(): bigint {
    return this.#handle.handle();
  }

  static {
    nativeStream = (stream) => stream.#handle;
  }
}

/** Checks a `stream` option; the device's current stream when absent. Internal. */
export function resolveStream(caller: string, stream: unknown, device: Device): Stream {
  if (stream === undefined) return Stream.current(device);
  if (!(stream instanceof Stream))
    throw new WarpgradTypeError(`${caller}: stream must be a Stream, got ${typeof stream}`);
  if (stream.device !== device) {
    throw new WarpgradRangeError(`${caller}: stream must be on ${device}, got one on ${stream.device}`);
  }
  return stream;
}
