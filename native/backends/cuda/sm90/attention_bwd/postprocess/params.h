#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/rows.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdPostprocessParams {
  AttentionBwdRows rows;
  const float* dq_accum;
  void* dq;  // [B, Sq, H, D] or [total_q, H, D]
  int32_t qk_dim;
  float scale;
};

// dK and dV from the parts that the splits of a group have made.
struct AttentionBwdCombineParams {
  struct Gradient {
    const float* parts;
    int64_t part_stride;
    void* grad;
    int64_t count;  // of the elements to write, a multiple of 8
  };
  Gradient gradients[2];
  int32_t splits;
};

}  // namespace warpgrad::cuda::sm90
