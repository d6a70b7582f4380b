#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"

namespace warpgrad::cuda::sm90 {

// A state [sequence, head, key, value] in either layout; strides in elements.
struct KdaStateOperand {
  float* data;  // null when absent
  int64_t sequence_stride, head_stride, key_stride, value_stride;
};

struct KdaRecurrenceParams {
  CUtensorMap tensor_map_out;  // [0][batch][value head][token][V], see make_rows_map
  const uint8_t* records;      // [chunk][value head]
  const KdaChunk* chunks;
  const KdaSequence* sequences;  // [grid.y]
  KdaStateOperand initial_state, final_state;
  uint16_t* out;          // bfloat16 [B, T, HV, V]
  uint8_t* state_images;  // [chunk][value head], like those of U
  uint8_t* u_images;
  int64_t tokens;
  int32_t value_heads, key_dim, value_dim, value_panels;
};

}  // namespace warpgrad::cuda::sm90
