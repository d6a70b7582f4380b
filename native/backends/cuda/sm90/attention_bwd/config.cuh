#pragma once

#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

// Query rows a step: what the registers allow beside the accumulators of dK and dV. README.md has the budget.
constexpr int attention_bwd_block_m(int head_dim, bool map_scores) {
  switch (head_dim) {
    case 64:
      return map_scores ? 96 : 128;
    case 96:
      return map_scores ? 80 : 96;
    default:  // 128
      return map_scores ? 64 : 80;
  }
}

// A block owns kBlockN keys, 64 for each consumer warpgroup, and walks over the queries that see them.
template <DType kElementType, int kDim, bool kMapScores>
struct AttentionBwdConfig {
  // Chosen
  static constexpr DType kType = kElementType;
  static constexpr int kHeadDim = kDim;               // of q, k and v; smaller ones are filled up with zeros
  static constexpr bool kMappedScores = kMapScores;   // softcap
  static constexpr int kBlockM = attention_bwd_block_m(kDim, kMapScores);
  static constexpr int kStages = 2;                   // of the rings of Q, dO and dS
  static constexpr int kConsumerWarpgroups = 2;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // Derived
  static constexpr int kBlockN = kConsumerWarpgroups * kWarpgroupRows;
  static constexpr int kThreads = (1 + kConsumerWarpgroups) * kWarpgroupThreads;
  static constexpr int kConsumerWarps = kConsumerWarpgroups * kWarpgroupThreads / kWarpThreads;
  using QueryTile = SwizzledTile<kBlockM, kDim>;      // Q and dO
  using KeyTile = SwizzledTile<kBlockN, kDim>;        // K and V
  using GradScoreTile = SwizzledTile<kBlockM, kBlockN>;  // dS, [query][key]
  static constexpr int kScoreRegisters = kBlockM / 2;  // float32, 64 keys x kBlockM queries over a warpgroup
  static constexpr int kFragmentRegisters = kBlockM / 4;  // the same in 16 bits
  static constexpr int kGradRegisters = kDim / 2;         // float32, 64 keys x kDim
  // dQᵀ: a warpgroup computes 64 columns of dQ, or, where there are only 64, half of the rows.
  static constexpr int kDqPanels = panel_count(kDim);
  static constexpr int kDqRows = kDqPanels == 1 ? kBlockM / 2 : kBlockM;
  static constexpr int kDqRegisters = kDqRows / 2;

  // Guarded
  static_assert(kElementType == DType::kBFloat16 || kElementType == DType::kFloat16);
  static_assert(kDim % 32 == 0 && kBlockM % 16 == 0 && kDqPanels <= kConsumerWarpgroups);
  static_assert(kWarpgroupThreads * (kProducerRegisters + kConsumerWarpgroups * kConsumerRegisters) <=
                kRegistersPerBlock);
  // Addresses and loop state take about 30 more.
  static_assert(2 * kGradRegisters + 2 * kScoreRegisters + kFragmentRegisters <= kConsumerRegisters - 12);
};

}  // namespace warpgrad::cuda::sm90
