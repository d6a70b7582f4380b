import { sequenceRows, type Float64Tensor } from '../../lib/reference/float64';
import type { KdaCase } from './kdaCases';

// How far the results of the recurrence of docs/kda.md §1 are off when each term of each sum is by a relative error of size 1,
// independent of the others (times the unit roundoff of an arithmetic it is what that arithmetic costs): the root of the sum
// of squares of the terms, about as large as the result itself unless they cancel. A state is off by what it has from earlier
// tokens too, which (I − β k kᵀ) takes on with the squares of its elements, and its adjoint by what it has from later ones.
//
//     D = diag(a) S      u = v − Dᵀk      S' = D + β k uᵀ = (I − β k kᵀ) D + β k vᵀ      o = scale · S'ᵀq
//     A' = A + scale · q doᵀ      w = A'ᵀk      dv = β w      dD = A' − β k wᵀ = (I − β k kᵀ) A'      A ← diag(a) dD
//     dq = scale · S' do      dβ = uᵀw      dk = β (A' u − D w)

const { exp, floor } = Math;

/** Squares of what results are off by: in the order of each tensor, states with keys first. */
export type KdaRoundings = Record<'out' | 'dq' | 'dk' | 'dv' | 'dbeta' | 'finalState' | 'dInitialState', Float64Array>;

/** Of a case without transforms, whose q and k have a row a value head. */
export function kdaRoundings(item: KdaCase): KdaRoundings {
  const { inputs, options, dOut, dFinalState } = item;
  const [B, T, HV, K] = inputs.q.shape as [number, number, number, number];
  const sequences = sequenceRows(options.cuSeqlens, B, T);
  const stateSize = K * inputs.v.shape[3];
  const like = ({ data }: Float64Tensor) => new Float64Array(data.length);
  const roundings: KdaRoundings = {
    ...{ out: like(dOut), dq: like(inputs.q), dk: like(inputs.k), dv: like(inputs.v), dbeta: like(inputs.beta) },
    finalState: new Float64Array(sequences.length * HV * stateSize),
    dInitialState: new Float64Array(sequences.length * HV * stateSize),
  };
  sequences.forEach(({ start, length }, n) => {
    for (let head = 0; head < HV; head++) {
      const token = (t: number) => tokenOf(item, (start + t) * HV + head);
      const states = [loadState(item, options.initialState, n * HV + head)];
      for (let t = 0; t < length; t++) states.push(advance(token(t), states[t]));
      roundings.finalState.set(squaresOf(states[length]), (n * HV + head) * stateSize);
      let adjoint = loadState(item, dFinalState, n * HV + head);
      for (let t = length - 1; t >= 0; t--) adjoint = retreat(token(t), states[t], states[t + 1], adjoint, roundings);
      roundings.dInitialState.set(squaresOf(adjoint), (n * HV + head) * stateSize);
    }
  });
  return roundings;
}

interface Token {
  readonly at: number; // of beta
  readonly q: Float64Array;
  readonly k: Float64Array;
  readonly v: Float64Array;
  readonly decay: Float64Array;
  readonly beta: number;
  readonly scale: number;
  readonly dOut: Float64Array;
}

function tokenOf({ inputs, dOut, options }: KdaCase, at: number): Token {
  const [K, V] = [inputs.q.shape[3], inputs.v.shape[3]];
  const row = ({ data }: Float64Tensor, width: number) => data.subarray(at * width, (at + 1) * width);
  return {
    ...{ at, q: row(inputs.q, K), k: row(inputs.k, K), v: row(inputs.v, V), decay: row(inputs.g, K).map(exp) },
    ...{ beta: inputs.beta.data[at], scale: options.scale ?? K ** -0.5, dOut: row(dOut, V) },
  };
}

/** Numbers, and the squares of what they are off by, their own rounding not included. */
interface Rounded {
  readonly value: Float64Array;
  readonly error: Float64Array;
}

function zeros(length: number): Rounded {
  return { value: new Float64Array(length), error: new Float64Array(length) };
}

/** With their own rounding. */
function squaresOf({ value, error }: Rounded): Float64Array {
  const squares = error.slice();
  for (let n = 0; n < value.length; n++) squares[n] += value[n] * value[n];
  return squares;
}

function loadState({ inputs, options }: KdaCase, tensor: Float64Tensor | undefined, n: number): Rounded {
  const [K, V] = [inputs.q.shape[3], inputs.v.shape[3]];
  const state = zeros(K * V);
  for (let at = 0; tensor && at < K * V; at++) {
    const place = options.stateLayout === 'vk' ? (at % V) * K + floor(at / V) : at;
    state.value[at] = tensor.data[n * K * V + place];
  }
  return state;
}

/** diag(decay) X */
function decayed({ decay, v }: Token, X: Rounded): Rounded {
  const result = zeros(X.value.length);
  for (let i = 0, n = 0; i < decay.length; i++) {
    const a = decay[i];
    for (let j = 0; j < v.length; j++, n++) {
      result.value[n] = a * X.value[n];
      result.error[n] = a * a * X.error[n];
    }
  }
  return result;
}

/** Xᵀk */
function alongKey({ k, v }: Token, X: Rounded): Rounded {
  const result = zeros(v.length);
  for (let i = 0, n = 0; i < k.length; i++) {
    const k2 = k[i] * k[i];
    for (let j = 0; j < v.length; j++, n++) {
      result.value[j] += k[i] * X.value[n];
      result.error[j] += k2 * (X.error[n] + X.value[n] * X.value[n]);
    }
  }
  return result;
}

/** X + sign · β k yᵀ, where y has −sign · Xᵀk in it: X then counts as (I − β k kᵀ) X. */
function updated({ k, beta }: Token, X: Rounded, y: Rounded, sign: 1 | -1): Rounded {
  const result = zeros(X.value.length);
  const squares = squaresOf(y);
  for (let i = 0, n = 0; i < k.length; i++) {
    const factor = beta * k[i];
    for (let j = 0; j < y.value.length; j++, n++) {
      result.value[n] = X.value[n] + sign * factor * y.value[j];
      result.error[n] = (1 - 2 * factor * k[i]) * X.error[n] + factor * factor * squares[j];
    }
  }
  return result;
}

/** u, from D */
function residual(token: Token, D: Rounded): Rounded {
  const u = alongKey(token, D);
  for (let j = 0; j < u.value.length; j++) {
    u.value[j] = token.v[j] - u.value[j];
    u.error[j] += token.v[j] * token.v[j];
  }
  return u;
}

function advance(token: Token, before: Rounded): Rounded {
  const D = decayed(token, before);
  return updated(token, D, residual(token, D), 1);
}

/** From the adjoint of the state after a token to that before it; adds the token's squares. */
function retreat(token: Token, before: Rounded, after: Rounded, adjoint: Rounded, roundings: KdaRoundings): Rounded {
  const { at, q, scale, beta, dOut } = token;
  const V = dOut.length;
  const [outAt, keyAt] = [at * V, at * q.length];
  const D = decayed(token, before);
  const u = residual(token, D);
  const A = { value: adjoint.value.slice(), error: adjoint.error.slice() };
  for (let i = 0, n = 0; i < q.length; i++) {
    for (let j = 0; j < V; j++, n++) {
      const term = scale * q[i] * dOut[j];
      A.value[n] += term;
      A.error[n] += term * term;
    }
  }
  const w = alongKey(token, A);
  const [squaresAfter, squaresD, squaresU, squaresW] = [squaresOf(after), squaresOf(D), squaresOf(u), squaresOf(w)];
  const { out, dq, dk, dv, dbeta } = roundings;
  for (let i = 0, n = 0; i < q.length; i++) {
    for (let j = 0; j < V; j++, n++) {
      out[outAt + j] += (scale * q[i]) ** 2 * squaresAfter[n];
      dq[keyAt + i] += (scale * dOut[j]) ** 2 * squaresAfter[n];
      const [Au, Dw] = [A.value[n] ** 2 * squaresU[j] + A.error[n] * u.value[j] ** 2, w.value[j] ** 2 * squaresD[n]];
      dk[keyAt + i] += beta * beta * (Au + Dw + w.error[j] * D.value[n] ** 2);
    }
  }
  for (let j = 0; j < V; j++) {
    dv[outAt + j] = beta * beta * squaresW[j];
    dbeta[at] += u.value[j] ** 2 * squaresW[j] + w.value[j] ** 2 * u.error[j];
  }
  return decayed(token, updated(token, A, w, -1));
}
