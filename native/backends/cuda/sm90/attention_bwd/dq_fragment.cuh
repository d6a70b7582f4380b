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

  // Where the first of the four values of a step belongs in the row block, and how far from it the second and the third
  // are (the fourth is both away). The products by keys are those of dQᵀ.
  static __device__ __forceinline__ int row(int part, int step, int thread) {
    const int lane = thread % kWarpThreads;
    if (Config::kByKeys) return (Config::kDqSplitRows ? part * Config::kDqRows : 0) + 8 * step + 2 * (lane % 4);
    return thread / kWarpThreads % 4 * 16 + lane / 4;
  }
  static __device__ __forceinline__ int column(int part, int step, int thread) {
    const int lane = thread % kWarpThreads, first = Config::kDqSplitRows ? 0 : part * kPanelColumns;
    if (Config::kByKeys) return first + thread / kWarpThreads % 4 * 16 + lane / 4;
    return first + 8 * step + 2 * (lane % 4);
  }
  static constexpr int kSecondRow = Config::kByKeys ? 1 : 0, kSecondColumn = Config::kByKeys ? 0 : 1;
  static constexpr int kThirdRow = Config::kByKeys ? 0 : 8, kThirdColumn = Config::kByKeys ? 8 : 0;
};

}  // namespace warpgrad::cuda::sm90
