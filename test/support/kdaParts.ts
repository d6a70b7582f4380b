import { kdaBackward, kdaForward, type Device, type KdaForwardOptions, type Tensor } from '../../lib';
import type { Float64Tensor } from '../../lib/reference/float64';
import { joinOf, sliceOf, sumOf } from './arrays';
import type { Operand } from './dtypes';
import type { KdaCase } from './kdaCases';
import { fromTensor, kdaOptions, toTensor, type KdaResults } from './run';

type PartResults = Partial<Record<keyof KdaResults, Float64Tensor>>;

/**
 * Runs a dense case in `lengths` tokens a call, each call from the final state of the one before, and back with each
 * call's dInitialState as the dFinalState of the one before. The results are those of one call on the whole.
 */
export async function runKdaInParts(
  item: KdaCase,
  lengths: readonly number[],
  dtype: Operand,
  device: Device = 'cpu',
): Promise<PartResults> {
  const { inputs, dOut, dFinalState, options } = item;
  const starts = lengths.map((_, n) => lengths.slice(0, n).reduce((sum, length) => sum + length, 0));
  const shared = kdaOptions(options, device);
  const [B, , , K] = inputs.q.shape as [number, number, number, number];
  const [HV, V] = inputs.v.shape.slice(2) as [number, number];
  const zero = {
    shape: [B, HV, ...(options.stateLayout === 'vk' ? [V, K] : [K, V])],
    data: new Float64Array(B * HV * K * V),
  };
  let state: Tensor = shared.initialState ?? toTensor(zero, 'float32', device);
  const forwards = starts.map((start, n) => {
    const part = (tensor: Float64Tensor) => toTensor(sliceOf(tensor, 1, start, start + lengths[n]), dtype, device);
    const gate = (tensor: Float64Tensor) => toTensor(sliceOf(tensor, 1, start, start + lengths[n]), 'float32', device);
    const { q, k, v, g, beta } = inputs;
    const partOptions: KdaForwardOptions = { ...shared, initialState: state, outputFinalState: true };
    const result = kdaForward(part(q), part(k), part(v), gate(g), gate(beta), partOptions);
    state = result.finalState!;
    return { ...result, dOut: part(dOut) };
  });
  let dState = dFinalState && toTensor(dFinalState, 'float32', device);
  const backwards = [...forwards].reverse().map(({ dOut: partDOut, saved }) => {
    const gradients = kdaBackward(partDOut, saved, { ...(dState && { dFinalState: dState }) });
    dState = gradients.dInitialState!;
    return gradients;
  });
  backwards.reverse();
  const read = (tensors: readonly (Tensor | undefined)[]) => Promise.all(tensors.map((tensor) => fromTensor(tensor!)));
  const { aLog, dtBias } = options.gate ?? {};
  return {
    out: joinOf(await read(forwards.map(({ out }) => out)), 1),
    finalState: await fromTensor(state),
    dq: joinOf(await read(backwards.map(({ dq }) => dq)), 1),
    dk: joinOf(await read(backwards.map(({ dk }) => dk)), 1),
    dv: joinOf(await read(backwards.map(({ dv }) => dv)), 1),
    dg: joinOf(await read(backwards.map(({ dg }) => dg)), 1),
    dbeta: joinOf(await read(backwards.map(({ dbeta }) => dbeta)), 1),
    ...(options.initialState && { dInitialState: await fromTensor(dState!) }),
    ...(aLog && { dALog: sumOf(await read(backwards.map(({ dALog }) => dALog))) }),
    ...(dtBias && { dDtBias: sumOf(await read(backwards.map(({ dDtBias }) => dDtBias))) }),
  };
}
