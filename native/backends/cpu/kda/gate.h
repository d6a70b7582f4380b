#pragma once

// The gate and beta, forward and backward, on padded float32 rows.

#include "backends/cpu/kda/problem.h"
#include "backends/cpu/kda/rows.h"
#include "backends/cpu/simd/vec_math.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

// What turns the gate's input x of one value head into g.
struct Gate {
  ops::GateKind kind;
  float a_log;  // 0 without A_log
  float a[2];   // exp(A_log) is the product: it may be more than a float, and what it multiplies little
  float lower_bound;
  const float* bias;  // [K], or null
};

WARPGRAD_INLINE Gate gate_of(const kda::Problem& problem, int64_t head) {
  constexpr float kMost = 88;  // e^88 is a float
  const float a_log = problem.a_log ? problem.a_log[head * problem.a_log_stride] : 0.0f;
  const Vec rest = min(splat(kMost), max(Vec{}, splat(a_log - kMost)));
  const Vec a = exp(min(splat(kMost), splat(a_log)));
  const float* bias = problem.dt_bias ? problem.dt_bias + head * problem.dt_bias_stride : nullptr;
  return {problem.gate, a_log, {a[0], exp(rest)[0]}, problem.lower_bound, bias};
}

WARPGRAD_INLINE Vec times_a(const Gate& gate, Vec x) {
  return x * gate.a[0] * gate.a[1];
}

WARPGRAD_INLINE Vec biased(const Gate& gate, const float* x, int d, int K) {
  const Vec value = load(x + d);
  if (!gate.bias) return value;
  return value + (K - d >= kLanes ? load(gate.bias + d) : load_partial(gate.bias + d, K - d > 0 ? K - d : 0));
}

// The softplus gate's -g = a softplus(z), and its derivative a sigmoid(z).
struct SoftplusGate {
  Vec value, slope;
};
WARPGRAD_INLINE SoftplusGate softplus_gate(const Gate& gate, Vec z) {
  // So far below 0 both are e^(A_log + z), which is of common size also where its factors are not.
  const IVec far_below = z < -18.0f;
  const Vec e = exp(far_below ? gate.a_log + z : -abs(z));
  const Vec softplus = max(Vec{}, z) + log1p_unit(e), sigmoid = (z < 0.0f ? e : splat(1.0f)) / (1.0f + e);
  return {far_below ? e : times_a(gate, softplus), far_below ? e : times_a(gate, sigmoid)};
}

// x[0..K) becomes g; the padding up to Kp becomes 0.
WARPGRAD_INLINE void gate_row(const Gate& gate, int K, int Kp, float* x) {
  if (gate.kind == ops::GateKind::kGiven) return;
  for (int d = 0; d < Kp; d += kLanes) {
    const Vec z = biased(gate, x, d, K);
    Vec g;
    if (gate.kind == ops::GateKind::kSoftplus) {
      g = -softplus_gate(gate, z).value;  // g = -a softplus(x + bias)
    } else {
      g = gate.lower_bound * sigmoid(times_a(gate, z));  // g = lb sigmoid(a (x + bias))
    }
    store(x + d, lane_numbers() + d < K ? g : Vec{});
  }
}

// dg[0..K) becomes the gradient of the gate's input x; adds to d_bias[d] and to the vector of partial sums d_a_log.
WARPGRAD_INLINE void gate_row_backward(const Gate& gate, int K, int Kp, const float* x, float* dg, float* d_bias,
                                       Vec& d_a_log) {
  if (gate.kind == ops::GateKind::kGiven) return;
  for (int d = 0; d < Kp; d += kLanes) {
    const Vec z = biased(gate, x, d, K);
    // A gate at its limit has no gradient, however infinite its other factor is.
    const IVec inside = lane_numbers() + d < K;
    const Vec dg_d = load(dg + d);
    Vec dx, term;
    if (gate.kind == ops::GateKind::kSoftplus) {
      const SoftplusGate softplus = softplus_gate(gate, z);
      dx = (inside & (dg_d != 0.0f)) ? -softplus.slope * dg_d : Vec{};  // dx = -a sigmoid(x + bias) dg
      term = dx != 0.0f ? -softplus.value * dg_d : Vec{};               // dA_log = sum g dg
    } else {
      const Vec u = times_a(gate, z);  // du = lb s (1 - s) dg with s = sigmoid(u)
      const Vec du = inside ? gate.lower_bound * sigmoid(u) * sigmoid(-u) * dg_d : Vec{};
      dx = times_a(gate, du);              // dx = lb s (1 - s) a dg
      term = du != 0.0f ? du * u : Vec{};  // dA_log = sum dx (x + bias)
    }
    store(dg + d, dx);
    store(d_bias + d, load(d_bias + d) + dx);
    d_a_log += term;
  }
}

// beta[0..64) of b[0..64)
WARPGRAD_INLINE void beta_of(const kda::Problem& problem, float* b) {
  if (!problem.beta_logits) return;
  const float top = problem.allow_neg_eigval ? 2.0f : 1.0f;
  for (int i = 0; i < kda::kChunk; i += kLanes) store(b + i, top * sigmoid(load(b + i)));
}

// db = dbeta beta (1 - sigmoid(b))
WARPGRAD_INLINE void beta_backward(const kda::Problem& problem, const float* b, float* dbeta) {
  if (!problem.beta_logits) return;
  const float top = problem.allow_neg_eigval ? 2.0f : 1.0f;
  for (int i = 0; i < kda::kChunk; i += kLanes) {
    const Vec logit = load(b + i);
    store(dbeta + i, load(dbeta + i) * top * sigmoid(logit) * sigmoid(-logit));
  }
}

// One element per token: b[0..64), zero past the last row.
WARPGRAD_INLINE void load_tokens(const kda::Operand& from, const kda::Chunk& chunk, int64_t head, float* to) {
  for (int i = 0; i < kda::kChunk; ++i) {
    if (i >= chunk.rows) {
      to[i] = 0;
      continue;
    }
    const int64_t offset = chunk.batch * from.strides[0] + (chunk.token + i) * from.strides[1] + head * from.strides[2];
    if (from.dtype == DType::kFloat32) {
      to[i] = static_cast<const float*>(from.data)[offset];
    } else {
      const uint16_t bits = static_cast<const uint16_t*>(from.data)[offset];
      to[i] = from.dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
    }
  }
}

WARPGRAD_INLINE void store_tokens(const kda::Operand& to, const kda::Chunk& chunk, int64_t head, const float* from) {
  for (int i = 0; i < chunk.rows; ++i) {
    const int64_t offset = chunk.batch * to.strides[0] + (chunk.token + i) * to.strides[1] + head * to.strides[2];
    if (to.dtype == DType::kFloat32) {
      static_cast<float*>(to.data)[offset] = from[i];
    } else {
      static_cast<uint16_t*>(to.data)[offset] =
          to.dtype == DType::kBFloat16 ? float_to_bfloat16(from[i]) : float_to_float16(from[i]);
    }
  }
}

// From the gradients of the log decays, rows [64, k_stride], and of beta [64] to those of the gate's input and of beta
// as it was passed, both written, and the chunk's partial sums; d_bias has room for Kp floats.
inline void store_gate_gradients(const kda::Problem& problem, const kda::Chunk& chunk, int64_t head, float* dg_rows,
                                 float* dbeta, float* d_bias, float* partial) {
  const int K = static_cast<int>(problem.K);
  const Gate gate = gate_of(problem, head);
  Vec d_a_log{};
  float x[ops::kMaxKdaDim];
  zero_rows(0, 1, problem.Kp, d_bias, 0);
  for (int i = 0; i < chunk.rows; ++i) {
    float* dg = dg_rows + i * problem.k_stride;
    if (gate.kind != ops::GateKind::kGiven) {
      load_row(problem.g, offset_of(problem.g, chunk.batch, chunk.token + i, head), K, x);
      gate_row_backward(gate, K, problem.Kp, x, dg, d_bias, d_a_log);
    }
    store_row(problem.dg, offset_of(problem.dg, chunk.batch, chunk.token + i, head), K, dg);
  }
  if (partial) {
    partial[0] = reduce_add(d_a_log);
    for (int d = 0; d < K; ++d) partial[1 + d] = d_bias[d];
  }
  float logits[kda::kChunk];
  load_tokens(problem.beta, chunk, head, logits);
  beta_backward(problem, logits, dbeta);
  store_tokens(problem.dbeta, chunk, head, dbeta);
}

}  // namespace
}  // namespace warpgrad::cpu::WARPGRAD_ISA
