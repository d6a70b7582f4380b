#pragma once

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// What a recurrence gives besides the final state.
enum class KdaRecurrenceResult {
  kOut,           // o
  kOutAndImages,  // and what the backward needs: S and U of each chunk
  kImages,
};

template <int kNumKeyPanels, int kNumValueWarpgroups, KdaRecurrenceResult kWanted>
struct KdaRecurrenceConfig {
  // Chosen
  static constexpr int kKeyPanels = kNumKeyPanels;
  static constexpr int kWarpgroups = kNumValueWarpgroups;  // consumers; each owns 64 columns of V
  static constexpr KdaRecurrenceResult kResult = kWanted;
  static constexpr int kStages = 3;
  // Results leave from room of their own, so that stages are free early; two warpgroups leave none, and results take
  // the place of operands that have been read.
  static constexpr bool kOwnRoom = kWarpgroups == 1;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;  // with two consumers

  // Derived
  static constexpr bool kWithOut = kResult != KdaRecurrenceResult::kImages;
  static constexpr bool kWithImages = kResult != KdaRecurrenceResult::kOut;
  static constexpr bool kOutInStage = kWithOut && !kOwnRoom;
  static constexpr bool kImagesInStage = kWithImages && !kOwnRoom;
  static constexpr int kOutSlots = kOutInStage ? kStages : kWithImages ? 1 : 2;
  static constexpr int kImageSlots = kImagesInStage ? kStages : 1;
  static constexpr bool kMovesRegisters = kWarpgroups > 1;
  static constexpr int kConsumerThreads = kWarpgroups * kWarpgroupThreads;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpThreads;
  // Who tells that a stage is free: the consumers' warps, or the storer, which comes last where o is in the stage.
  static constexpr int kStageUsers = kOutInStage ? 1 : kConsumerWarps + (kImagesInStage ? 1 : 0);
  // A producer and a storer warp; setmaxnreg takes whole warpgroups.
  static constexpr int kThreads = kConsumerThreads + (kMovesRegisters ? kWarpgroupThreads : 2 * kWarpThreads);
  using KeyTile = SwizzledTile<kKdaChunkRows, kKeyPanels * kPanelColumns>;
  using ScoreTile = SwizzledTile<kKdaChunkRows, kKdaChunkRows>;
  using ValueTile = SwizzledTile<kKdaChunkRows, kPanelColumns>;  // of one warpgroup
  using StateTile = KeyTile;                                     // of one warpgroup: [64 values, keys]
  static constexpr int kKeySteps = kKeyPanels * kPanelColumns / 16;
  static constexpr int kTokenSteps = kKdaChunkRows / 16;
  static constexpr int kStateRegisters = kKeyPanels * 32;  // float32, 64 values x keys over a warpgroup
  static constexpr int kValueRegisters = 32;               // float32, 64 values x 64 tokens

  // Guarded
  static_assert(kKeyPanels == 1 || kKeyPanels == 2);
  static_assert(kWarpgroups == 1 || kWarpgroups == 2);
  static_assert(!kMovesRegisters ||
                kWarpgroupThreads * (kProducerRegisters + kWarpgroups * kConsumerRegisters) <= kRegistersPerBlock);
};

}  // namespace warpgrad::cuda::sm90
