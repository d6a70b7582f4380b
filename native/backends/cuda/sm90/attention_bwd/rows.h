#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/params.h"

namespace warpgrad::cuda::sm90 {

// Where the row blocks of a call lie, for the kernels before and after the main one.
struct AttentionBwdRows {
  const AttentionBwdSequence* sequences;  // [num_sequences], null when dense
  int32_t num_sequences;
  int32_t block_m;
  int32_t num_heads;
  int32_t row_blocks;  // of one head
  int64_t q_rows;      // of the tensor: Sq, or total_q
};

}  // namespace warpgrad::cuda::sm90
