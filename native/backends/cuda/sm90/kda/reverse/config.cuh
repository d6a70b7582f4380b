#pragma once

#include <algorithm>

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// A block goes through a sequence for one value head and 64 of its values. Its dSᵀ [64 values, keys] stays in the
// accumulators of one warpgroup.
template <int kNumKeyPanels>
struct KdaReverseConfig {
  // Chosen
  static constexpr int kKeyPanels = kNumKeyPanels;
  static constexpr int kStages = kKeyPanels == 1 ? 4 : kKeyPanels == 2 ? 3 : 2;  // chunks on their way or in work
  // T and Aqk are read early in a step and long before those of the next chunk are needed, so where room is short there
  // is one place for each, that is filled again during the step.
  static constexpr bool kTrianglesInStage = kKeyPanels <= 2;
  // dS becomes an operand in parts of so many panels: their fragments stay in registers until they are stored.
  static constexpr int kPartPanels = std::min(kKeyPanels, 2);
  // Reads from shared memory that stand behind products wait for these, so the factors of the next chunk are read
  // before them, where there are registers for that, and ptxas does not serialise products then (64 keys, C7511).
  static constexpr bool kReadsDecayAhead = kKeyPanels == 2;

  // Derived
  static constexpr int kThreads = kWarpgroupThreads + 2 * kWarpThreads;  // consumers, producer, storer
  static constexpr int kKeys = kKeyPanels * kPanelColumns;
  static constexpr int kParts = kKeyPanels / kPartPanels;
  static constexpr int kTriangles = kTrianglesInStage ? kStages : 1;
  using KeyTile = SwizzledTile<kKdaChunkRows, kKeys>;            // Kd, Kr, Qd [token, key]; dSᵀ [value, key]
  using ValueTile = SwizzledTile<kKdaChunkRows, kPanelColumns>;  // dO, dv [token, value]

  // Guarded
  static_assert(kKeyPanels == 1 || kKeyPanels == 2 || kKeyPanels == 4);
  static_assert(KeyTile::kBytes == kKeyPanels * kKdaPanelBytes && ValueTile::kBytes == kKdaPanelBytes);
};

}  // namespace warpgrad::cuda::sm90
