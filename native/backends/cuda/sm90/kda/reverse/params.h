#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/kda/state.cuh"
#include "backends/cuda/sm90/kda/token_panel.cuh"

namespace warpgrad::cuda::sm90 {

struct KdaReverseParams {
  CUtensorMap tensor_map_d_out;  // make_rows_map
  const uint8_t* records;        // [chunk][value head]
  uint8_t* d_state_images;       // [chunk][value head][value panel][key panel]
  KdaTokenTensor dv;
  const KdaChunk* chunks;
  const KdaSequence* sequences;
  KdaStates d_final_states, d_initial_states;
  int32_t value_heads, value_panels;
};

}  // namespace warpgrad::cuda::sm90
