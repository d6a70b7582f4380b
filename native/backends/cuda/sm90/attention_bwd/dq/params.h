#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/params.h"

namespace warpgrad::cuda::sm90 {

constexpr int kDqWarpgroups = 2;  // of the kernel of dQ; each takes a row block

struct AttentionBwdDqParams {
  AttentionBwdKernelParams problem;  // as the main kernel has it
  void* dq;                          // [B, Sq, H, D] or [total_q, H, D]
  int64_t q_rows;                    // Sq, or total_q
  int32_t heads_per_section;         // query heads that are worked on side by side
};

}  // namespace warpgrad::cuda::sm90
