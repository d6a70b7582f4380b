#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/config.cuh"

namespace warpgrad::cuda::sm90 {

// The float32 accumulator of dQ lies as the wgmma fragments do, so that each thread adds 16 bytes at a time:
// [row block][part][step][thread][4].
template <class Config>
struct DqFragment {
  static constexpr int kStep = 4 * kWarpgroupThreads;
  static constexpr int kSteps = Config::kDqRegisters / 4;
  static constexpr int kPartFloats = kSteps * kStep;
  static constexpr int kBlockFloats = Config::kDqParts * kPartFloats;

  static __device__ __forceinline__ int64_t offset(int row_block, int part, int thread) {
    return static_cast<int64_t>(row_block) * kBlockFloats + part * kPartFloats + thread % kWarpgroupThreads * 4;
  }

  // Where the first of the four values of a step belongs in the row block. Of dQᵀ a thread holds two rows, each with
  // two neighbouring columns: the second value is a row of dQ further, the third 8 columns, the fourth both.
  static __device__ __forceinline__ int row(int part, int step, int thread) {
    return (Config::kDqSplitRows ? part * Config::kDqRows : 0) + 8 * step + 2 * (thread % 4);
  }
  static __device__ __forceinline__ int column(int part, int thread) {
    const int first = Config::kDqSplitRows ? 0 : part * kPanelColumns;
    return first + thread / kWarpThreads % 4 * 16 + thread % kWarpThreads / 4;
  }
};

}  // namespace warpgrad::cuda::sm90
