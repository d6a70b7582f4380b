#pragma once

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "backends/cuda/sm90/tile/triangle_tile.cuh"

namespace warpgrad::cuda::sm90 {

// What a recurrence gives besides the final state.
enum class KdaRecurrenceResult {
  kOut,           // o
  kOutAndImages,  // and what the backward needs: S and E of each chunk
  kImages,
  kSegment,  // only the final state, and that of the transition: from an identity, with v = 0
};

template <int kNumKeyPanels, int kNumWarpgroups, KdaRecurrenceResult kWanted>
struct KdaRecurrenceConfig {
  // Chosen
  static constexpr int kKeyPanels = kNumKeyPanels;
  static constexpr int kWarpgroups = kNumWarpgroups;  // consumers
  static constexpr KdaRecurrenceResult kResult = kWanted;
  static constexpr int kStages = kKeyPanels == 4 ? 2 : 3;
  // Warpgroups that share 64 columns of V and add up what they have of R and o: the state is too large for one.
  static constexpr int kKeyParts = kKeyPanels == 4 ? 2 : 1;
  // v comes with each stage, with two warpgroups into one place; with 256 keys there is no room and they read it
  // themselves.
  static constexpr int kValueSlots = kKeyPanels == 4 ? 0 : kWarpgroups == 1 ? kStages : 1;
  // A block may go on with other works. With images that costs more than it gains; two warpgroups of 256 keys lack
  // registers for it, of fewer keys a reason.
  static constexpr bool kSeveralWorks = kWarpgroups == 1 && kResult == KdaRecurrenceResult::kOut;
  static constexpr int kProducerRegisters = kKeyParts > 1 ? 40 : 56;  // with two consumers
  static constexpr int kConsumerRegisters = kKeyParts > 1 ? 232 : 224;

  // Derived
  static constexpr int kValueParts = kWarpgroups / kKeyParts;  // of 64 columns of V
  static constexpr int kOwnKeyPanels = kKeyPanels / kKeyParts;
  static constexpr bool kSegment = kResult == KdaRecurrenceResult::kSegment;
  static constexpr bool kWithOut =
      kResult == KdaRecurrenceResult::kOut || kResult == KdaRecurrenceResult::kOutAndImages;
  static constexpr bool kWithImages =
      kResult == KdaRecurrenceResult::kImages || kResult == KdaRecurrenceResult::kOutAndImages;
  // Where there are registers for it.
  static constexpr bool kWithChunkStates = kWithOut && !(kWithImages && kKeyParts > 1);
  // The image of S leaves from the places of Kd and Qd, once these have been read, that of E from the place of v. With
  // two warpgroups E and then o leave from one place: room of their own or, with 256 keys, that of T.
  static constexpr bool kInPlaceOfT = kKeyParts > 1;
  static constexpr bool kOutInStage = kWithOut && kInPlaceOfT;
  static constexpr bool kEInPlaceOfOut = kWithImages && kValueSlots == 1;
  // Whether something else goes where an image was before the stage is free.
  static constexpr bool kAwaitsImagesStored = kEInPlaceOfOut || (kWithImages && kOutInStage);
  static constexpr int kOutSlots = kOutInStage ? kStages : 1;
  static constexpr bool kMovesRegisters = kWarpgroups > 1;
  static constexpr int kConsumerThreads = kWarpgroups * kWarpgroupThreads;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpThreads;
  // Who tells that a stage is free: the consumers and, where images leave from it, the storer; the latter alone where
  // it has o last.
  static constexpr int kStageUsers = kOutInStage ? 1 : kConsumerThreads + (kWithImages ? 1 : 0);
  // A producer and a storer warp; setmaxnreg takes whole warpgroups.
  static constexpr int kThreads = kConsumerThreads + (kMovesRegisters ? kWarpgroupThreads : 2 * kWarpThreads);
  using KeyTile = SwizzledTile<kKdaChunkRows, kKeyPanels * kPanelColumns>;
  using ValueTile = SwizzledTile<kKdaChunkRows, kPanelColumns>;  // of one warpgroup
  using StateTile = KeyTile;                                     // [64 values, keys]
  static constexpr int kKeySteps = kOwnKeyPanels * kPanelColumns / 16;
  static constexpr int kTokenSteps = kKdaChunkRows / 16;
  static constexpr int kStateRegisters = kOwnKeyPanels * 32;  // float32, 64 values x keys over a warpgroup
  static constexpr int kValueRegisters = 32;                  // float32, 64 values x 64 tokens

  // Guarded
  static_assert(kKeyPanels == 1 || kKeyPanels == 2 || kKeyPanels == 4);
  static_assert(kWarpgroups == 2 || (kWarpgroups == 1 && kKeyParts == 1));
  // No more than the block starts with, else setmaxnreg waits for ever.
  static constexpr int kStartRegisters = kRegistersPerBlock / kThreads / 8 * 8;
  static_assert(!kMovesRegisters || kWarpgroupThreads * (kProducerRegisters + kWarpgroups * kConsumerRegisters) <=
                                        kThreads * kStartRegisters);
};

}  // namespace warpgrad::cuda::sm90
