#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/state.cuh"

// What state.cuh does, with fewer instructions; see reverse/consumer.cuh for why not everywhere. `thread` is
// threadIdx.x.
namespace warpgrad::cuda::sm90 {

// Calls visit(value, element, inside) for what a thread holds of a warpgroup's accumulator [64 values, keys] of one
// state, that of the 64 values from `first_value` on: `element` is where it is in device memory, unless beyond the
// dimensions. NOTE: one address that steps along; 64 of their own cost 28 instructions each, more than two chunks of a
// recurrence.
template <int kCount, class Visit>
__device__ __forceinline__ void for_each_state_step(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                    int head, int first_value, uint32_t thread, Visit visit) {
  const int lane_idx = thread % kWarpThreads, warp_idx = thread % kWarpgroupThreads / kWarpThreads;
  const int first_row = first_value + 16 * warp_idx + lane_idx / 4, first_key = 2 * (lane_idx % 4);
  const int keys = states.key_dim - first_key, values = states.value_dim - first_row;
  const int64_t key_stride = states.key_stride, value_stride = states.value_stride;
  float* element = states.data + sequence * states.sequence_stride + head * states.head_stride +
                   first_key * key_stride + first_row * value_stride;
#pragma unroll
  for (int i = 0; i < kCount; i += 4, element += 8 * key_stride) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = 2 * i + j % 2, value = j / 2 * 8;
      visit(accum[i + j], element + j % 2 * key_stride + value * value_stride, key < keys && value < values);
    }
  }
}

// Zeros where there is none.
template <int kCount>
__device__ __forceinline__ void load_state_in_steps(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                    int head, int first_value, uint32_t thread) {
  for_each_state_step(accum, states, sequence, head, first_value, thread,
                      [](float& value, const float* element, bool inside) {
                        const float loaded = inside ? *element : 0;
                        // NOTE: adding -0 changes nothing, but ptxas serialises products into registers that a
                        // predicated load wrote.
                        asm volatile("add.f32 %0, %1, 0f80000000;" : "=f"(value) : "f"(loaded));
                      });
}

template <int kCount>
__device__ __forceinline__ void store_state_in_steps(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                     int head, int first_value, uint32_t thread) {
  for_each_state_step(accum, states, sequence, head, first_value, thread, [](float value, float* element, bool inside) {
    if (inside) *element = value;
  });
}

}  // namespace warpgrad::cuda::sm90
