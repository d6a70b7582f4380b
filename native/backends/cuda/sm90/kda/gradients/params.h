#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

struct KdaGradientsParams {
  // [B][H][T][column], boxes of 64 tokens x 128 bytes
  CUtensorMap tensor_map_q, tensor_map_k, tensor_map_g, tensor_map_dv, tensor_map_d_out;
  CUtensorMap tensor_map_dq, tensor_map_dk, tensor_map_dg;

  // Images, [chunk][value head]
  const uint8_t *records, *states, *e, *d_states;
  uint8_t* scores;  // of wide heads: KdaScores [chunk][value head]
  const KdaChunk* chunks;

  // Contiguous [B][T][value heads][...]
  uint8_t *dq, *dk, *dg;
  void* dbeta;
  DType dbeta_type;
  float beta_top;  // beta = beta_top sigmoid(b); 0: beta is given

  float* d_a_log_parts;    // [key part][chunk][value head] or null
  float* d_dt_bias_parts;  // [chunk][value head][K] or null

  const float* a_log;    // [value heads] or null
  const float* dt_bias;  // [value heads][K] or null
  int64_t dt_bias_stride;
  float lower_bound;
  float scale;
  int32_t l2_norm;

  int32_t num_tiles;  // chunks x value heads
  int32_t value_heads, group;
  int32_t tokens;
  int32_t key_dim;
  int32_t value_panels;
  int32_t key_parts, value_parts;  // of 128 columns
  KdaRecordLayout record;
};

}  // namespace warpgrad::cuda::sm90
