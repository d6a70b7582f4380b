#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/recurrence/config.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
struct KdaRecurrenceStorage {
  // One chunk's record, or what this block needs of it. Once they have been read, W and Qd make room for the images of
  // S, and U0 for that of U and then, if kOutInStage, for o.
  struct alignas(kSwizzleAtomBytes) Stage {
    SmemTile<typename Config::KeyTile> w, kr, qd;
    SmemTile<typename Config::ScoreTile> aqk;
    SmemTile<typename Config::ValueTile> u0[Config::kWarpgroups];
    float decay[Config::kKeyPanels * kPanelColumns];
  };
  Stage stages[Config::kStages];
  SmemTiles<Config::kOutBuffers, typename Config::ValueTile> out;

  uint64_t bar_full[Config::kStages], bar_empty[Config::kStages];
  uint64_t bar_images_full[Config::kStages], bar_images_stored[Config::kStages];
  uint64_t bar_out_full[Config::kOutSlots], bar_out_empty[Config::kOutSlots];  // the latter for o's own room
};

// Named barrier 0 is __syncthreads'.
enum KdaRecurrenceBarrier : int { kBarrierConsumers = 1 };

// What a block works on.
struct KdaRecurrenceWork {
  int first_chunk, num_chunks;
  int sequence, head;
  int value_panel;  // of the first warpgroup
};

}  // namespace warpgrad::cuda::sm90
