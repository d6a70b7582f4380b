import {
  attentionBackward,
  attentionForward,
  configure,
  kdaBackward,
  kdaForward,
  type memoryStats,
  Stream,
  type systemInfo,
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

// Compiled, never run: api.test.ts checks that every line that must not compile does not, and that all others do.

declare const tensor: Tensor;
declare const saved: KdaSaved;

/** Fails to compile unless both types are the same. */
function same<A>(): <B>(value: [A, B] extends [B, A] ? true : false) => void {
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
  same<DType>()<typeof made.dtype>(true);
  same<Device>()<typeof made.device>(true);
  same<bigint>()<typeof made.address>(true);
  const data: TypedArray = await made.data();
  const dataSync: TypedArray = made.dataSync();
  using scoped = made.to({ dtype: 'float32' });
  void [data, dataSync, scoped];

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
  same<Tensor>()<typeof dq>(true);
  same<Tensor | undefined>()<typeof dSink>(true);

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
    ...{ betaLogits: true, allowNegEigval: true, stateLayout: 'vk', saveIntermediates: true, stream: new Stream() },
  });
  same<Tensor | undefined>()<typeof result.finalState>(true);
  same<KdaSaved>()<typeof result.saved>(true);
  const gradients = kdaBackward(result.out, result.saved, { dFinalState: tensor });
  same<Tensor>()<typeof gradients.dg>(true);
  same<Tensor | undefined>()<typeof gradients.dALog>(true);

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
  same<boolean>()<typeof event.reached>(true);
  configure({ cpuThreads: 2, cpuInstructionSet: 'avx2' });
  same<number>()<ReturnType<typeof memoryStats>['liveBytes']>(true);
  same<boolean>()<ReturnType<typeof systemInfo>['cuda']['available']>(true);
  const error = new WarpgradError('ERR_WARPGRAD_NO_DEVICE', 'message');
  same<ErrorCode>()<typeof error.code>(true);

  // @ts-expect-error -- no such instruction set
  configure({ cpuInstructionSet: 'sse2' });
  // @ts-expect-error -- unknown option
  configure({ threads: 2 });
  // @ts-expect-error -- events come from record()
  stream.wait({ reached: true });
  // @ts-expect-error -- no such code
  new WarpgradError('ERR_NO_SUCH', 'message');
}
