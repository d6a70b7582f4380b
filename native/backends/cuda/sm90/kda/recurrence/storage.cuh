#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/recurrence/config.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
struct KdaRecurrenceStorage {
  // One chunk's record, or what this block needs of it, but for the decay. Without room of their own the images of S
  // take the places of W and Qd once these have been read, and that of U, then o, the place of U0.
  struct alignas(kSwizzleAtomBytes) Stage {
    SmemTile<typename Config::KeyTile> w, kr, qd;
    SmemTile<typename Config::ScoreTile> aqk;
    SmemTile<typename Config::ValueTile> u0[Config::kValueParts];
  };
  Stage stages[Config::kStages];
  SmemTiles<Config::kOwnRoom && Config::kWithOut ? Config::kOutSlots : 0, typename Config::ValueTile> out;
  SmemTiles<Config::kOwnRoom && Config::kWithImages ? 1 : 0, typename Config::ValueTile> u_image;
  SmemTiles<Config::kOwnRoom && Config::kWithImages ? 1 : 0, typename Config::StateTile> state_image;
  alignas(16) float decay[Config::kStages][Config::kKeyPanels * kPanelColumns];

  uint64_t bar_full[Config::kStages], bar_empty[Config::kStages];
  uint64_t bar_images_full[Config::kImageSlots], bar_images_stored[Config::kImageSlots];
  uint64_t bar_out_full[Config::kOutSlots], bar_out_stored[Config::kOutSlots];
};

// Named barrier 0 is __syncthreads'.
enum KdaRecurrenceBarrier : int { kBarrierConsumers = 1 };

// What a block works on.
struct KdaRecurrenceWork {
  int first_chunk, num_chunks;
  int initial_state, final_state;
  int head;
  int value_panel;  // of the first warpgroup; those of a transition follow the others
};

}  // namespace warpgrad::cuda::sm90
