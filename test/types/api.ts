import {
  attentionBackward,
  attentionForward,
  configure,
  Graph,
  kdaBackward,
  kdaForward,
  memoryStats,
  Stream,
  systemInfo,
  Tensor,
  WarpgradError,
  type AttentionOptions,
  type Device,
  type DType,
  type ErrorCode,
  type Event,
  type KdaSaved,
  type TypedArray,
} from '../../lib';
import type { TfjsAttentionOptions, TfjsKdaOptions } from '../../lib/integrations/tfjs';

// Compiled, never run: api.test.ts checks that every line that must not compile does not, and that all others do.

declare const tensor: Tensor;
declare const saved: KdaSaved;

/** Fails to compile unless the value's type is exactly `Expected`. */
function exactly<Expected>(): <Actual>(
  ...values: ([Expected, Actual] extends [Actual, Expected] ? Actual : never)[]
) => void {
  return () => undefined;
}

export async function tensors(): Promise<void> {
  const made = Tensor.from(
    [
      [1, 2],
      [3, 4],
    ],
    [2, 2],
    { dtype: 'bfloat16', device: 'auto' },
  );
  Tensor.from(3);
  Tensor.from(Uint16Array.of(1), [1], { dtype: 'float16' });
  Tensor.zeros([1, 2]).slice(0, 0, 1).transpose(0, 1).expand([2, 4]).view([8]).contiguous();
  exactly<DType>()(made.dtype);
  exactly<Device>()(made.device);
  exactly<bigint>()(made.address);
  const data: TypedArray = await made.data();
  const dataSync: TypedArray = made.dataSync();
  using scoped = made.to({ dtype: 'float32' });
  exactly<Tensor>()(scoped);
  exactly<TypedArray>()(data, dataSync);

  // @ts-expect-error -- no such dtype
  Tensor.zeros([1], { dtype: 'float64' });
  // @ts-expect-error -- no such device
  Tensor.zeros([1], { device: 'gpu' });
  // @ts-expect-error -- unknown option
  Tensor.zeros([1], { requiresGrad: true });
  // @ts-expect-error -- a shape is an array
  Tensor.zeros(3);
  // @ts-expect-error -- text is no data
  Tensor.from('1, 2');
  // @ts-expect-error -- made by its static functions alone
  new Tensor();
  // @ts-expect-error -- shapes are read-only
  made.shape[0] = 3;
  // @ts-expect-error -- properties are read-only
  made.dtype = 'float16';
}

export function attention(): void {
  const options: AttentionOptions = { causal: true, window: [4, Infinity], softcap: 20, sink: tensor, softmaxScale: 1 };
  const { out, lse } = attentionForward(tensor, tensor, tensor, {
    ...options,
    cuSeqlensQ: [0, 1],
    cuSeqlensK: Int32Array.of(0, 1),
  });
  const { dq, dk, dv, dSink } = attentionBackward(out, tensor, tensor, tensor, out, lse, {
    ...options,
    deterministic: true,
  });
  const stream = undefined as Stream | undefined;
  attentionForward(tensor, tensor, tensor, { stream, sink: undefined });
  Tensor.zeros([1], { stream, dtype: undefined });
  tensor.copyFrom(tensor.contiguous({ stream }), { stream });
  const placement = { device: undefined as Device | undefined, dtype: undefined };
  const placed: TfjsAttentionOptions & TfjsKdaOptions = placement;
  exactly<TfjsAttentionOptions & TfjsKdaOptions>()(placed);
  exactly<Tensor>()(dq, dk, dv);
  exactly<Tensor | undefined>()(dSink);

  // @ts-expect-error -- unknown option
  attentionForward(tensor, tensor, tensor, { dropoutP: 0.1 });
  // @ts-expect-error -- v is missing
  attentionForward(tensor, tensor);
  // @ts-expect-error -- a window has two sides
  attentionForward(tensor, tensor, tensor, { window: 5 });
  // @ts-expect-error -- no flag
  attentionForward(tensor, tensor, tensor, { causal: 'yes' });
  // @ts-expect-error -- an option of the backward
  attentionForward(tensor, tensor, tensor, { deterministic: true });
  // @ts-expect-error -- lse is missing
  attentionBackward(out, tensor, tensor, tensor, out);
  // @ts-expect-error -- offsets are no float array
  attentionForward(tensor, tensor, tensor, { cuSeqlensQ: Float32Array.of(0, 1), cuSeqlensK: [0, 1] });
}

export function kda(): void {
  const gate = { aLog: tensor, dtBias: tensor, lowerBound: -5 };
  const result = kdaForward(tensor, tensor, tensor, tensor, tensor, {
    ...{ scale: 1, initialState: tensor, outputFinalState: true, cuSeqlens: [0, 4], qkL2Norm: true, gate },
    ...{ outputChunkStates: true, batchInvariant: true },
    ...{ betaLogits: true, allowNegEigval: true, stateLayout: 'vk', saveIntermediates: true, stream: new Stream() },
  });
  exactly<Tensor | undefined>()(result.finalState, result.chunkStates);
  exactly<KdaSaved>()(result.saved);
  const wanted = tensor.rank > 1; // not known to the types
  const decoding = { initialState: tensor, stream: undefined as Stream | undefined };
  exactly<Tensor>()(
    kdaForward(tensor, tensor, tensor, tensor, tensor, { ...decoding, outputFinalState: true }).finalState,
  );
  exactly<Tensor | undefined>()(
    kdaForward(tensor, tensor, tensor, tensor, tensor).finalState,
    kdaForward(tensor, tensor, tensor, tensor, tensor, decoding).finalState,
    kdaForward(tensor, tensor, tensor, tensor, tensor, { outputFinalState: false }).finalState,
    kdaForward(tensor, tensor, tensor, tensor, tensor, { outputFinalState: undefined as boolean | undefined })
      .finalState,
    kdaForward(tensor, tensor, tensor, tensor, tensor, { outputFinalState: wanted ? true : undefined }).finalState,
    kdaForward(tensor, tensor, tensor, tensor, tensor, { ...(wanted && { outputFinalState: true as const }) })
      .finalState,
  );
  const gradients = kdaBackward(result.out, result.saved, { dFinalState: tensor });
  exactly<Tensor>()(gradients.dg, gradients.dbeta);
  exactly<Tensor | undefined>()(gradients.dALog, gradients.dDtBias, gradients.dInitialState);

  // @ts-expect-error -- no such layout
  kdaForward(tensor, tensor, tensor, tensor, tensor, { stateLayout: 'vkv' });
  // @ts-expect-error -- unknown option
  kdaForward(tensor, tensor, tensor, tensor, tensor, { chunkSize: 64 });
  // @ts-expect-error -- unknown gate option
  kdaForward(tensor, tensor, tensor, tensor, tensor, { gate: { bias: tensor } });
  // @ts-expect-error -- beta is missing
  kdaForward(tensor, tensor, tensor, tensor);
  // @ts-expect-error -- what the forward saved, not its output
  kdaBackward(tensor, tensor);
  // @ts-expect-error -- unknown option
  kdaBackward(tensor, saved, { scale: 1 });
}

export async function rest(): Promise<void> {
  const stream = new Stream('cuda:1');
  const event: Event = Stream.current().record();
  stream.wait(event);
  await stream.synchronize();
  exactly<boolean>()(event.reached);
  exactly<number>()(await event.elapsedSince(event));
  const graph = stream.capture(() => tensor.copyFrom(tensor, { stream }));
  exactly<Graph>()(graph);
  graph.replay();
  exactly<bigint>()(tensor.address, stream.handle);
  exactly<Tensor>()(Tensor.fromPointer(8n, [2], { dtype: 'int32', device: 'cuda', strides: [1], owner: {} }));
  configure({ cpuThreads: 2, cpuInstructionSet: 'avx2' });
  exactly<number>()(memoryStats().liveBytes);
  exactly<boolean>()(systemInfo().cuda.available);
  const error = new WarpgradError('ERR_WARPGRAD_NO_DEVICE', 'message');
  exactly<ErrorCode>()(error.code);

  // @ts-expect-error -- no such instruction set
  configure({ cpuInstructionSet: 'sse2' });
  // @ts-expect-error -- unknown option
  configure({ threads: 2 });
  // @ts-expect-error -- an address is a bigint
  Tensor.fromPointer(8, [2]);
  // @ts-expect-error -- a graph comes from capture()
  new Graph();
  // @ts-expect-error -- events come from record()
  stream.wait({ reached: true });
  // @ts-expect-error -- no such code
  new WarpgradError('ERR_NO_SUCH', 'message');
}
