import { kdaForward, type Device, type KdaForwardOptions, type Tensor } from '../../lib';
import { sequenceRows, type Float64Tensor } from '../../lib/reference/float64';
import { kdaForwardReference } from '../../lib/reference/kda';
import { joinOf, sliceOf } from './arrays';
import { expectBitwiseEqual } from './compare';
import type { Operand } from './dtypes';
import type { KdaCase } from './kdaCases';
import { fromTensor, kdaOptions, readAll, toTensor } from './run';

const CHUNK = 64;

/** Forward of a case with the states of its chunks. */
export async function runKdaChunkStates(item: KdaCase, dtype: Operand, device: Device = 'cpu') {
  const { saved, chunkStates, ...outputs } = forward(item, dtype, device, { outputChunkStates: true });
  saved.dispose();
  return readAll({ ...outputs, chunkStates: chunkStates! });
}

/** The states by the float64 reference: each is the final state of the tokens before its chunk. */
export function kdaChunkStatesReference({ inputs, options }: KdaCase): Float64Tensor {
  const { cuSeqlens, initialState, ...rest } = options;
  const [batch, length] = inputs.q.shape as [number, number];
  const states: Float64Tensor[] = [];
  for (const [n, rows] of sequenceRows(cuSeqlens, batch, length).entries()) {
    const [b, start] = cuSeqlens ? [0, rows.start] : [n, 0];
    const ownState = initialState && { initialState: sliceOf(initialState, 0, n, n + 1) };
    for (let token = 0; token < rows.length; token += CHUNK) {
      const before = (tensor: Float64Tensor) => sliceOf(sliceOf(tensor, 0, b, b + 1), 1, start, start + token);
      const { q, k, v, g, beta } = inputs;
      const tokens = { q: before(q), k: before(k), v: before(v), g: before(g), beta: before(beta) };
      states.push(kdaForwardReference(tokens, { ...rest, ...ownState }).finalState);
    }
  }
  return joinOf(states, 0);
}

/** A dense call that starts at a chunk, from its state, gives the rest of what the whole gives, bitwise. */
export async function expectChunkStatesGoOn(item: KdaCase, dtype: Operand, device: Device = 'cpu'): Promise<void> {
  const whole = forward(item, dtype, device, { outputChunkStates: true });
  const [B, T] = item.inputs.v.shape as [number, number];
  const chunks = Math.ceil(T / CHUNK);
  const [out, finalState, states] = await Promise.all(
    [whole.out, whole.finalState!, whole.chunkStates!].map((tensor) => fromTensor(tensor)),
  );
  for (let chunk = 0; chunk < chunks; chunk++) {
    const own = Array.from({ length: B }, (_, b) => sliceOf(states, 0, b * chunks + chunk, b * chunks + chunk + 1));
    const tail = (tensor: Float64Tensor) => sliceOf(tensor, 1, chunk * CHUNK, T);
    const { q, k, v, g, beta } = item.inputs;
    const inputs = { q: tail(q), k: tail(k), v: tail(v), g: tail(g), beta: tail(beta) };
    const rest = forward(
      { ...item, inputs, options: { ...item.options, initialState: joinOf(own, 0) } },
      dtype,
      device,
    );
    expectBitwiseEqual(`out from chunk ${chunk}`, (await fromTensor(rest.out)).data, tail(out).data);
    expectBitwiseEqual(`finalState from chunk ${chunk}`, (await fromTensor(rest.finalState!)).data, finalState.data);
  }
}

function forward(item: KdaCase, dtype: Operand, device: Device, more: KdaForwardOptions = {}) {
  const { q, k, v, g, beta } = item.inputs;
  const operands = [q, k, v].map((tensor) => toTensor(tensor, dtype, device)) as [Tensor, Tensor, Tensor];
  const gates = [g, beta].map((tensor) => toTensor(tensor, 'float32', device)) as [Tensor, Tensor];
  return kdaForward(...operands, ...gates, { ...kdaOptions(item.options, device), outputFinalState: true, ...more });
}
