#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/kda/state.cuh"
#include "backends/cuda/sm90/kda/token_panel.cuh"

namespace warpgrad::cuda::sm90 {

struct KdaRecurrenceParams {
  CUtensorMap tensor_map_v;  // [0][batch][value head][token][V], see make_rows_map
  const uint16_t* v;         // bfloat16, the same as in its map
  int64_t v_batch_stride, v_token_stride, v_head_stride;
  const uint8_t* records;  // [chunk][value head]
  const KdaChunk* chunks;
  const KdaSequence* sequences;
  KdaStates initial_state, final_state;
  KdaStates chunk_states;  // with chunks in place of sequences
  KdaTokenTensor out;
  uint8_t* state_images;  // [chunk][value head], like those of E
  uint8_t* e_images;
  int32_t value_heads, value_dim, value_panels;
  int32_t work_panels;  // of a sequence and head: value panels, and those of a transition
  int32_t num_works;    // see KdaRecurrenceWork
};

}  // namespace warpgrad::cuda::sm90
