#pragma once

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"
#include "backends/cuda/sm90/tile/triangle_tile.cuh"

namespace warpgrad::cuda::sm90 {

// T or Aqk of a record. `full` has to expect kKdaTriangleBytes.
__device__ __forceinline__ void load_triangle(SmemTile<TriangleTile>& tile, const uint8_t* image, uint64_t* full) {
  static_assert(kda_triangle_panel(1) == TriangleTile::panel_bytes(0) &&
                kKdaTriangleBytes - kda_triangle_panel(3) == TriangleTile::panel_bytes(3));
#pragma unroll
  for (int panel = 0; panel < TriangleTile::kPanels; ++panel) {
    ptx::bulk_load(tile.bytes + TriangleTile::panel_offset(panel), image + kda_triangle_panel(panel),
                   TriangleTile::panel_bytes(panel), full);
  }
}

}  // namespace warpgrad::cuda::sm90
