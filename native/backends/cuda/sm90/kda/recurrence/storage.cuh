#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/recurrence/config.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
struct KdaRecurrenceStorage {
  // One chunk's record in its order, or what this block needs of it, but for the decay. What is above the diagonals of
  // T and Aqk is cleared at the start.
  struct alignas(kSwizzleAtomBytes) Stage {
    SmemTile<typename Config::KeyTile> kd, kr;
    SmemTile<TriangleTile> t;
    SmemTile<typename Config::KeyTile> qd;
    SmemTile<TriangleTile> aqk;
  };
  template <int kCount>
  using ValueTiles = SmemTiles<kCount, typename Config::ValueTile>;
  Stage stages[Config::kStages];
  // NOTE: not in a stage, where it would take room when empty; nvcc 13.0 miscounts with [[no_unique_address]].
  ValueTiles<Config::kValueSlots * Config::kValueParts> v;
  ValueTiles<(Config::kWithOut && !Config::kOutInStage) || Config::kEInPlaceOfOut ? Config::kValueParts : 0> out;
  alignas(16) float decay[Config::kStages][Config::kKeyPanels * kPanelColumns];

  uint64_t bar_full[Config::kStages], bar_empty[Config::kStages];
  uint64_t bar_images_full[Config::kStages], bar_images_stored[Config::kStages];
  uint64_t bar_out_full[Config::kOutSlots], bar_out_stored[Config::kOutSlots];
  uint64_t bar_values_empty;  // where stages share the place of v

  __device__ __forceinline__ uint8_t* v_tiles(uint32_t stage) {
    return v.tiles[Config::kValueSlots == 1 ? 0 : stage].bytes;
  }
  // Where E and o of a chunk leave from: a tile a value part.
  __device__ __forceinline__ uint8_t* e_tiles(uint32_t stage) {
    if constexpr (Config::kInPlaceOfT) {
      return stages[stage].t.bytes;
    } else if constexpr (Config::kEInPlaceOfOut) {
      return out.tiles[0].bytes;
    } else {
      return v_tiles(stage);
    }
  }
  __device__ __forceinline__ uint8_t* out_tiles(uint32_t stage) {
    if constexpr (Config::kInPlaceOfT) {
      return stages[stage].t.bytes;
    } else {
      return out.tiles[0].bytes;
    }
  }
};

// Named barrier 0 is __syncthreads'.
enum KdaRecurrenceBarrier : int { kBarrierConsumers = 1 };

}  // namespace warpgrad::cuda::sm90
