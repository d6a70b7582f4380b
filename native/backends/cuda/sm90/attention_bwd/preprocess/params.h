#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/rows.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdPreprocessParams {
  AttentionBwdRows rows;
  const void* out;  // strides in elements
  const void* d_out;
  int64_t out_batch_stride, out_row_stride, out_head_stride;
  int64_t d_out_batch_stride, d_out_row_stride, d_out_head_stride;
  int32_t v_dim;
  const float* lse;   // [B, H, Sq] or [H, total_q]
  const float* sink;  // [H] or null

  float* lse_log2;       // [row blocks][block_m]
  float* delta;          // [row blocks][block_m]
  float* dq_accum;       // [row blocks][block_floats]
  int32_t* dq_turn;      // [row blocks] or null
  float* d_sink_parts;   // [row blocks], with a sink: -sum over the rows of exp(sink - lse) delta
  int64_t block_floats;  // 0 where dQ is not added up
};

}  // namespace warpgrad::cuda::sm90
