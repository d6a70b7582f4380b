#pragma once

#include <cstdint>

#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/find_sequence.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warp of a persistent block that claims tiles and says what they are, shortly before their loads. What a tile is,
// plan_tile<Config>(params, sequence, tile, work) knows, and set_no_work(work) how the end looks.
template <class Config, class Storage, class Params, int kSlots>
class TilePlanner {
 public:
  using Slots = Ring<kSlots>;

  __device__ __forceinline__ TilePlanner(Storage& storage, const Params& params)
      : storage_(storage), params_(params), lane_idx_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run() {
    for (uint32_t count = 0;; ++count) {
      const uint32_t slot = Slots::stage(count);
      // Not before the producer asks: a tile claimed early is one that no idle block can take.
      if (count > 0) ptx::mbarrier_wait(&storage_.bar_claim, (count - 1) & 1);
      ptx::mbarrier_wait(&storage_.bar_work_empty[slot], Slots::parity(count) ^ 1);
      const int tile = count == 0 ? static_cast<int>(blockIdx.x) : claim_tile();
      const bool done = tile >= params_.num_tiles;
      if (done) {
        if (lane_idx_ == 0) set_no_work(storage_.work[slot]);
      } else {
        plan(tile, slot);
      }
      if (lane_idx_ == 0) ptx::mbarrier_arrive(&storage_.bar_work_full[slot]);
      if (done) break;
    }
    if (lane_idx_ == 0) finish();
  }

 private:
  __device__ __forceinline__ void plan(int tile, uint32_t slot) {
    const bool packed = params_.sequences != nullptr;
    const int sequence = packed ? find_sequence(params_.sequences, params_.num_sequences, tile, lane_idx_) : 0;
    if (lane_idx_ != 0) return;
    plan_tile<Config>(params_, packed ? params_.sequences[sequence] : params_.dense, tile, storage_.work[slot]);
  }

  __device__ __forceinline__ int claim_tile() {
    const int claimed = lane_idx_ == 0 ? static_cast<int>(gridDim.x) + atomicAdd(&params_.counters[0], 1) : 0;
    return __shfl_sync(~0u, claimed, 0);
  }

  // The last block leaves the counters as it found them.
  __device__ __forceinline__ void finish() {
    __threadfence();
    if (atomicAdd(&params_.counters[1], 1) == static_cast<int>(gridDim.x) - 1) {
      params_.counters[0] = 0;
      params_.counters[1] = 0;
    }
  }

  Storage& storage_;
  const Params& params_;
  const int lane_idx_;
};

}  // namespace warpgrad::cuda::sm90
