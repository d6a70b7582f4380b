#pragma once

#include <cstdint>

namespace warpgrad::cuda::sm90 {

// A ring of kStages slots, used in turn, each with barriers that flip their parity once a round. One counter tells
// where a thread stands.
template <int kStages>
struct Ring {
  static_assert((kStages & (kStages - 1)) == 0, "stages must be a power of two");
  static __device__ __forceinline__ uint32_t stage(uint32_t count) { return count % kStages; }
  static __device__ __forceinline__ uint32_t parity(uint32_t count) { return count / kStages & 1; }
};

// A place in a ring of any number of slots.
template <int kStages>
struct RingPosition {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace warpgrad::cuda::sm90
