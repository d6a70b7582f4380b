#pragma once

#include "backends/cuda/sm90/attention_bwd/dq/params.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

// How the warpgroups of a block share its work. README.md draws both.
enum class AttentionBwdForm {
  kByKeys,  // head dimensions up to 128: each of two warpgroups does everything for 64 keys
  kByRole,  // larger ones: one warpgroup makes P and dS of 64 keys, one sums up dV, one dK; dQ has its own kernel
};

struct AttentionBwdTile {
  AttentionBwdForm form;
  int block_m;  // query rows a step: what registers and shared memory allow
};

constexpr AttentionBwdTile attention_bwd_tile(int qk_dim, int v_dim, bool map_scores) {
  if (qk_dim > 128) return {AttentionBwdForm::kByRole, 64};
  if (qk_dim == 64) return {AttentionBwdForm::kByKeys, map_scores ? 96 : 128};
  if (qk_dim == 96) return {AttentionBwdForm::kByKeys, map_scores ? 80 : 96};
  return {AttentionBwdForm::kByKeys, map_scores ? 64 : 80};
}

// A block owns kBlockN keys and walks over the queries that see them, kBlockM at a time.
template <DType kElementType, int kQkHeadDim, int kVHeadDim, bool kMapScores>
struct AttentionBwdConfig {
  // Chosen
  static constexpr DType kType = kElementType;
  static constexpr int kQkDim = kQkHeadDim;  // smaller head dimensions are filled up with zeros
  static constexpr int kVDim = kVHeadDim;
  static constexpr bool kMappedScores = kMapScores;  // softcap
  static constexpr AttentionBwdTile kTile = attention_bwd_tile(kQkDim, kVDim, kMapScores);
  static constexpr bool kByKeys = kTile.form == AttentionBwdForm::kByKeys;
  static constexpr int kBlockM = kTile.block_m;
  static constexpr int kStages = 2;  // of the rings of Q, dO, P and dS
  static constexpr int kConsumerWarpgroups = kByKeys ? 2 : 3;
  static constexpr int kBlockN = kByKeys ? 2 * kWarpgroupRows : kWarpgroupRows;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kScoresRegisters = 152;  // of the warpgroup that makes P and dS, by role
  static constexpr int kConsumerRegisters = kByKeys ? 240 : 168;
  // By role, the kernel of dQ, of as many keys a step: its rings of K and V.
  static constexpr int kDqKeyStages = 2, kDqValueStages = kQkDim > 192 ? 1 : 2;
  static constexpr int kDqConsumerRegisters = 240;

  // Derived
  static constexpr int kThreads = (1 + kConsumerWarpgroups) * kWarpgroupThreads;
  using QueryTile = SwizzledTile<kBlockM, kQkDim>;
  using OutTile = SwizzledTile<kBlockM, kVDim>;  // dO
  using KeyTile = SwizzledTile<kBlockN, kQkDim>;
  using ValueTile = SwizzledTile<kBlockN, kVDim>;
  using ScoreTile = SwizzledTile<kBlockM, kBlockN>;  // P and dS, [query][key]
  // A warpgroup's scores: 64 keys x kBlockM queries, or by role 64 queries x 64 keys.
  static constexpr int kScoreRegisters = kBlockM / 2;
  static constexpr int kFragmentRegisters = kBlockM / 4;  // the same in 16 bits
  // By keys, dQ comes in two parts of 64 columns, or of half the rows where there are only 64 columns.
  static constexpr int kDqPanels = panel_count(kQkDim);
  static constexpr bool kDqSplitRows = kDqPanels == 1;
  static constexpr int kDqParts = 2;
  static constexpr int kDqRows = kDqSplitRows ? kBlockM / 2 : kBlockM;
  static constexpr int kDqRegisters = kDqRows / 2;                            // of one part
  static constexpr int kDqThreads = (1 + kDqWarpgroups) * kWarpgroupThreads;  // of the kernel of dQ

  // Guarded
  static_assert(kElementType == DType::kBFloat16 || kElementType == DType::kFloat16);
  static_assert(kQkDim % 32 == 0 && kVDim % 32 == 0 && kBlockM % 16 == 0);
  static_assert(!kByKeys || (kQkDim == kVDim && kDqPanels <= kDqParts));
  static_assert(kByKeys || kBlockM == kWarpgroupRows);
  static_assert(kWarpgroupThreads * (kProducerRegisters + (kByKeys ? 0 : kScoresRegisters) + 2 * kConsumerRegisters) <=
                kRegistersPerBlock);
  // Addresses and loop state take about 30 more.
  static_assert(!kByKeys || kQkDim + 2 * kScoreRegisters + kFragmentRegisters <= kConsumerRegisters - 12);
};

}  // namespace warpgrad::cuda::sm90
