#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_view.h"

namespace warpgrad::ops {

constexpr int64_t kMaxKdaDim = 256;
constexpr int64_t kKdaChunk = 64;

enum class GateKind : uint8_t {
  kGiven,     // g is the log decay itself
  kSoftplus,  // g = -exp(A_log) softplus(x + dt_bias)
  kBounded,   // g = lower_bound sigmoid(exp(A_log) (x + dt_bias))
};

// Kimi Delta Attention; docs/kda.md has the mathematics.
//
//   q, k           [B, T, H, K]      packed sequences: B = 1, T = cu_seqlens.back() or more
//   v, out         [B, T, HV, V]
//   g              [B, T, HV, K]     float32 or the dtype of q
//   beta           [B, T, HV]        float32 or the dtype of q
//   a_log          [HV]              float32, optional
//   dt_bias        [HV, K]           float32, optional
//   initial_state  [N, HV, K, V], or [N, HV, V, K] when state_vk; float32, optional; likewise final_state
//   chunk_states   likewise with chunks in place of sequences: the states before each of them; optional
//
// Inputs may have any strides but 1 in the last dimension; outputs are contiguous.
struct KdaOptions {
  float scale = 1;
  bool qk_l2_norm = false;
  GateKind gate = GateKind::kGiven;
  float lower_bound = 0;  // < 0, for kBounded
  bool beta_logits = false;
  bool allow_neg_eigval = false;  // with beta_logits: beta = 2 sigmoid(b)
  bool state_vk = false;
  bool batch_invariant = false;     // bits do not depend on what else is in the call
  std::vector<int32_t> cu_seqlens;  // [N + 1], empty when dense
};

// What decides the size of the memory that the saving mode keeps from the forward for the backward. Chunks are numbered
// through the sequences in order: their number is the sum over the sequences of ceil(length / 64).
struct KdaSavedDims {
  int64_t chunks, value_heads, key_dim, value_dim;
};

struct KdaForwardParams {
  KdaOptions options;
  TensorView q, k, v, g, beta, a_log, dt_bias, initial_state;
  TensorView out, final_state, chunk_states;
  TensorView saved;  // float32 [Backend::kda_saved_elems], in the backend's layout; absent in the recomputing mode
};

struct KdaBackwardParams {
  KdaOptions options;
  TensorView d_out, d_final_state;  // d_final_state optional
  TensorView q, k, v, g, beta, a_log, dt_bias, initial_state;
  TensorView saved;
  // Outputs. dq, dk, dv have the dtype of q; dg, dbeta the dtypes of g, beta; the others float32. The last three are
  // optional.
  TensorView dq, dk, dv, dg, dbeta, d_initial_state, d_a_log, d_dt_bias;
};

int64_t num_chunks(const KdaOptions& options, int64_t batch, int64_t tokens);
KdaSavedDims saved_dims(const KdaOptions& options, const TensorView& q, const TensorView& v);

// All but `saved`, whose size the backend knows.
void check(const KdaForwardParams& params);
void check(const KdaBackwardParams& params);
void check_saved(const char* operation, const TensorView& saved, int64_t elems);

}  // namespace warpgrad::ops
