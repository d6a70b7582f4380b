#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// A contiguous bfloat16 tensor [B, T, value heads, V] that is written chunk by chunk.
struct KdaTokenTensor {
  CUtensorMap map;  // make_rows_map, kKdaChunkRows a box
  uint16_t* data;
  int64_t tokens;
  int32_t value_heads, value_dim;
};

// Writes the panel [tokens of the chunk, 64 values from `first_value` on] of a head from shared memory, by a whole
// warp. The first lane has to end the bulk group.
__device__ __forceinline__ void store_token_panel(const KdaTokenTensor& tensor, const KdaChunk& chunk, int head,
                                                  int first_value, const uint8_t* panel) {
  using Panel = SwizzledTile<kKdaChunkRows, kPanelColumns>;
  const int lane_idx = threadIdx.x % kWarpThreads;
  if (chunk.rows == kKdaChunkRows) {
    if (lane_idx == 0) ptx::tensor_store(tensor.map, {first_value, chunk.token, head, chunk.batch, 0}, panel);
    return;
  }
  // Without touching the rows of the next sequence: lane l takes the 16-byte chunk l % 8 of every fourth row.
  const int lane_chunk = lane_idx % 8, column = first_value + lane_chunk * 8;
  if (column >= tensor.value_dim) return;
  const int64_t row_elems = static_cast<int64_t>(tensor.value_heads) * tensor.value_dim;
  uint16_t* const first_row = tensor.data + (chunk.batch * tensor.tokens + chunk.token) * row_elems +
                              static_cast<int64_t>(head) * tensor.value_dim + column;
#pragma unroll 1
  for (int row = lane_idx / 8; row < chunk.rows; row += kWarpThreads / 8) {
    *reinterpret_cast<uint4*>(first_row + row * row_elems) =
        *reinterpret_cast<const uint4*>(panel + Panel::chunk_address(0, row, lane_chunk));
  }
}

}  // namespace warpgrad::cuda::sm90
