#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/tensor_view.h"

namespace warpgrad::ops {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxHeadDim = 256;

// Scaled dot-product attention with a band mask; docs/attention.md has the mathematics.
//
//            dense             packed
//   q        [B, Sq, H, D]     [total_q, H, D]
//   k        [B, Sk, Hkv, D]   [total_k, Hkv, D]
//   v        [B, Sk, Hkv, Dv]  [total_k, Hkv, Dv]
//   out      [B, Sq, H, Dv]    [total_q, H, Dv]      contiguous
//   lse      [B, H, Sq]        [H, total_q]          contiguous float32, natural logarithm
//   sink     [H]                                     float32, optional
//
// q, k, v, d_out may have any strides but 1 in the last dimension (a stride of 0 there is refused; 0 elsewhere is
// fine).
struct AttentionOptions {
  float scale = 1;                    // applied to q·k
  float softcap = 0;                  // 0: off
  int64_t window_left = kUnbounded;   // keys to the left of the diagonal that a query sees
  int64_t window_right = kUnbounded;  // keys to the right; 0 when causal
  std::vector<int32_t> cu_seqlens_q;  // [N + 1], empty when dense
  std::vector<int32_t> cu_seqlens_k;

  friend bool operator==(const AttentionOptions&, const AttentionOptions&) = default;
};

struct AttentionForwardParams {
  AttentionOptions options;
  TensorView q, k, v, sink;  // inputs
  TensorView out, lse;       // outputs
};

struct AttentionBackwardParams {
  AttentionOptions options;
  TensorView d_out, q, k, v, out, lse, sink;  // inputs; d_out, out like out above
  TensorView dq, dk, dv, d_sink;              // outputs: contiguous, dtype of q; d_sink [H] float32
  bool deterministic = false;                 // bitwise equal from run to run (the CPU always is)
};

// Shape, dtype and contiguity rules, for callers that bypass lib/: throws Error(kInvalidArgument).
void check(const AttentionForwardParams& params);
void check(const AttentionBackwardParams& params);

}  // namespace warpgrad::ops
