#pragma once

#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

// What was chosen for one pair of head dimensions; README.md says why.
struct AttentionFwdTile {
  int block_n;              // keys a step
  int stages;               // of each of the rings of K and V
  int consumer_warpgroups;  // 64 rows each
  bool query_in_registers;  // else Q K^T reads Q from shared memory
  bool out_through_smem;    // out leaves by the copy engine, else by 16-byte stores
  bool take_turns;          // the warpgroups issue their products in turns
};

constexpr AttentionFwdTile attention_fwd_tile(int qk_dim, int v_dim, bool map_scores) {
  if (qk_dim == 64 && v_dim == 64) return {112, 2, 3, false, true, true};
  if (qk_dim == 96 && v_dim == 96) return {144, 2, 2, true, true, true};
  if (qk_dim == 128 && v_dim == 128) return {128, 2, 2, !map_scores, true, false};  // mapping needs the registers
  if (qk_dim == 192 && v_dim == 128) return {128, 2, 2, false, false, true};
  if (qk_dim == 192 && v_dim == 192) return {112, 2, 2, false, false, true};
  return {80, 2, 2, false, false, true};  // 256
}

// Head dimension 64 with few keys a row: blocks of 128 rows leave fewer of them unused.
constexpr AttentionFwdTile kAttentionFwdShortTile64 = {128, 2, 2, true, true, false};

template <DType kElementType, int kQkHeadDim, int kVHeadDim, bool kMapScores,
          AttentionFwdTile kTileChoice = attention_fwd_tile(kQkHeadDim, kVHeadDim, kMapScores)>
struct AttentionFwdConfig {
  // Chosen
  static constexpr DType kType = kElementType;
  static constexpr int kQkDim = kQkHeadDim;
  static constexpr int kVDim = kVHeadDim;
  static constexpr bool kMappedScores = kMapScores;  // softcap, or a negative scale
  static constexpr AttentionFwdTile kTile = kTileChoice;
  static constexpr int kBlockN = kTile.block_n;
  static constexpr int kStages = kTile.stages;
  static constexpr int kConsumerWarpgroups = kTile.consumer_warpgroups;
  static constexpr int kProducerRegisters = kConsumerWarpgroups == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumerWarpgroups == 2 ? 240 : 160;

  // Derived
  static constexpr int kThreads = (1 + kConsumerWarpgroups) * kWarpgroupThreads;
  static constexpr int kConsumerWarps = kConsumerWarpgroups * kWarpgroupThreads / kWarpThreads;
  using QueryTile = SwizzledTile<kWarpgroupRows, kQkDim>;
  using KeyTile = SwizzledTile<kBlockN, kQkDim>;
  using ValueTile = SwizzledTile<kBlockN, kVDim>;
  using OutTile = SwizzledTile<kWarpgroupRows, kVDim>;
  static constexpr int kScoreRegisters = kBlockN / 2;        // float32, 64 x kBlockN over a warpgroup
  static constexpr int kProbabilityRegisters = kBlockN / 4;  // the same in 16 bits
  static constexpr int kOutRegisters = kVDim / 2;            // float32, 64 x kVDim
  static constexpr int kQueryRegisters = kTile.query_in_registers ? kQkDim / 4 : 0;

  // Guarded
  static_assert(kElementType == DType::kBFloat16 || kElementType == DType::kFloat16);
  static_assert(kQkDim % 16 == 0 && kVDim % 32 == 0 && kBlockN % 16 == 0);
  static_assert(kConsumerWarpgroups == 2 || kConsumerWarpgroups == 3);
  static_assert(kWarpgroupThreads * (kProducerRegisters + kConsumerWarpgroups * kConsumerRegisters) <=
                kRegistersPerBlock);
  // Addresses, row statistics and loop state take about 35 more.
  static_assert(kScoreRegisters + kProbabilityRegisters + kOutRegisters + kQueryRegisters <= kConsumerRegisters - 12);
};

}  // namespace warpgrad::cuda::sm90
