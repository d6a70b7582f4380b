// What KDA does to its inputs before the recurrence, each step with its derivative: the L2 norm of q and k, the gates
// that make a log decay from a raw value, and β from a logit. The table in docs/kda.md has the formulas.

/** How the log decay of one (head, channel) comes from the raw `g`. */
export interface GateChannel {
  readonly aLog: number | undefined;
  readonly bias: number;
  readonly lowerBound: number | undefined;
}

const NORM_EPSILON = 1e-6;

/** y = x·r with r = (Σx² + 1e-6)^-1/2; returns r and writes y. */
export function normalizeRow(x: Float64Array, y: Float64Array): number {
  const r = (x.reduce((sum, value) => sum + value * value, 0) + NORM_EPSILON) ** -0.5;
  x.forEach((value, d) => (y[d] = value * r));
  return r;
}

/** dx = r (dy − y (y·dy)) */
export function normalizeRowBackward(y: Float64Array, r: number, dy: Float64Array): Float64Array {
  const projection = y.reduce((sum, value, d) => sum + value * dy[d], 0);
  return dy.map((value, d) => r * (value - y[d] * projection));
}

/** a = exp(A_log), 1 without A_log; finite, so that what it multiplies may be 0. */
function expALog(aLog = 0): number {
  return Math.min(Math.exp(aLog), Number.MAX_VALUE);
}

/** The log decay of a raw gate value. */
export function gateValue(x: number, { aLog, bias, lowerBound }: GateChannel): number {
  const a = expALog(aLog);
  return lowerBound === undefined ? -a * softplus(x + bias) : lowerBound * sigmoid(a * (x + bias));
}

/** Gradients to the raw gate value (the bias has the same) and to A_log, from the gradient `dg` of the log decay. */
export function gateBackward(x: number, dg: number, channel: GateChannel): { dx: number; dALog: number } {
  const { aLog, bias, lowerBound } = channel;
  const a = expALog(aLog);
  if (lowerBound === undefined) {
    const dx = -a * sigmoid(x + bias) * dg;
    return { dx, dALog: dg === 0 ? 0 : gateValue(x, channel) * dg }; // a decay of −∞ has no gradient, not NaN
  }
  const u = a * (x + bias);
  const du = lowerBound * sigmoid(u) * sigmoid(-u) * dg;
  return { dx: a * du, dALog: du === 0 ? 0 : u * du };
}

/** β = σ(b), or 2σ(b) with `allowNegEigval`. */
export function betaFromLogit(logit: number, allowNegEigval: boolean): number {
  return (allowNegEigval ? 2 : 1) * sigmoid(logit);
}

/** db = dβ · β (1 − σ(b)) */
export function betaFromLogitBackward(logit: number, dBeta: number, allowNegEigval: boolean): number {
  return dBeta * betaFromLogit(logit, allowNegEigval) * sigmoid(-logit);
}

function sigmoid(x: number): number {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

function softplus(x: number): number {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}
