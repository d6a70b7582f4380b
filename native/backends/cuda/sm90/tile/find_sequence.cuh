#pragma once

#include "backends/cuda/sm90/limits.h"

namespace warpgrad::cuda::sm90 {

// The last sequence whose first tile is at or before `tile`; the warp searches 32 places at a time.
template <class Sequence>
__device__ __forceinline__ int find_sequence(const Sequence* sequences, int count, int tile, int lane_idx) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int step = (high - low + kWarpThreads - 1) / kWarpThreads;
    const int place = low + lane_idx * step;
    const bool reached = place < high && sequences[place].first_tile <= tile;
    const int last = __popc(__ballot_sync(~0u, reached)) - 1;
    low += last * step;
    high = min(high, low + step);
  }
  return low;
}

}  // namespace warpgrad::cuda::sm90
