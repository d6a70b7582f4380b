#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"
#include "core/dtype.h"
#include "ops/kda.h"

namespace warpgrad::cuda::sm90 {

struct KdaPrepareParams {
  CUtensorMap tensor_map_q, tensor_map_k;  // [wrap][B][H][T][K], see make_rows_map
  CUtensorMap tensor_map_g;                // [wrap][B][HV][T][K]; none in float32

  const KdaChunk* chunks;  // [chunks]
  const float* g;          // [B, T, HV, K] in float32, else null; strides in elements
  int64_t g_batch_stride, g_token_stride, g_head_stride;
  const void* beta;  // [B, T, HV]
  int64_t beta_batch_stride, beta_token_stride, beta_head_stride;
  const float* a_log;  // [HV] or null
  int64_t a_log_stride;
  const float* dt_bias;  // [HV, K] or null
  int64_t dt_bias_stride;

  uint8_t* records;  // [chunk][HV] of KdaRecordLayout

  int32_t value_heads, group, key_dim;
  float scale, lower_bound;
  DType beta_dtype;
  ops::GateKind gate;
  bool beta_logits, allow_neg_eigval;
};

}  // namespace warpgrad::cuda::sm90
