import { Tensor, attentionForward, kdaForward, kdaBackward, type AttentionOptions, type DType } from 'warpgrad';

const dtype: DType = 'bfloat16';
const options: AttentionOptions = { causal: true, window: [4, 0] };
using q = Tensor.from(new Float32Array(32).fill(0.5), [1, 4, 2, 4], { dtype });
const { out, lse }: { out: Tensor; lse: Tensor } = attentionForward(q, q, q, options);

using g = Tensor.zeros([1, 4, 2, 4]);
using beta = Tensor.from(new Float32Array(8).fill(0.5), [1, 4, 2]);
const forward = kdaForward(q, q, q, g, beta, { outputFinalState: true });
const gradients = kdaBackward(forward.out, forward.saved);
const state: Tensor = forward.finalState;

/** Only for the compiler: these throw. */
export const mistakes = [
  // @ts-expect-error an option that does not exist
  () => attentionForward(q, q, q, { casual: true }),
  // @ts-expect-error a dtype that does not exist
  () => Tensor.zeros([1], { dtype: 'float8' }),
];

const lengths = [out, lse, gradients.dq, state].map((tensor) => tensor.dataSync().length);
console.log(JSON.stringify({ lengths }));
