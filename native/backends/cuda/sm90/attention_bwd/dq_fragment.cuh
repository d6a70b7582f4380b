#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/config.cuh"

namespace warpgrad::cuda::sm90 {

// The float32 accumulator of dQ lies as the wgmma fragments of dQᵀ do, so that each thread adds 16 bytes at a time:
// [row block][warpgroup][kDqRows / 8][thread][4]. Element e of step j is column 16 warp + lane / 4 + 8 (e / 2) of the
// warpgroup's 64 and row 8 j + 2 (lane % 4) + e % 2 of its rows.
template <class Config>
struct DqFragment {
  static constexpr int kStep = 4 * kWarpgroupThreads;
  static constexpr int kWarpgroupFloats = Config::kDqRows * kPanelColumns;
  static constexpr int kBlockFloats = Config::kConsumerWarpgroups * kWarpgroupFloats;

  static __device__ __forceinline__ int64_t offset(int row_block, int warpgroup_idx, int thread) {
    return static_cast<int64_t>(row_block) * kBlockFloats + warpgroup_idx * kWarpgroupFloats +
           thread % kWarpgroupThreads * 4;
  }
};

}  // namespace warpgrad::cuda::sm90
