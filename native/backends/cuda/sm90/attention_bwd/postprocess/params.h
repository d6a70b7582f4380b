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

}  // namespace warpgrad::cuda::sm90
