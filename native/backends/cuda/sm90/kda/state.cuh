#pragma once

#include <cstdint>

#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/ptx/global_memory.cuh"
#include "core/tensor_view.h"

namespace warpgrad::cuda::sm90 {

// States of all sequences and heads in device memory, K-first or V-first; absent ones have no dimensions.
struct KdaStates {
  float* data = nullptr;
  int64_t sequence_stride = 0, head_stride = 0, key_stride = 0, value_stride = 0;
  int32_t key_dim = 0, value_dim = 0;

  KdaStates() = default;
  KdaStates(const TensorView& view, bool state_vk) : data(view.as<float>()) {
    if (!view) return;
    const int key_axis = state_vk ? 3 : 2, value_axis = state_vk ? 2 : 3;
    sequence_stride = view.strides[0];
    head_stride = view.strides[1];
    key_stride = view.strides[key_axis];
    value_stride = view.strides[value_axis];
    key_dim = static_cast<int32_t>(view.shape[key_axis]);
    value_dim = static_cast<int32_t>(view.shape[value_axis]);
  }
};

// Calls visit(value, element) for what a thread holds of a warpgroup's accumulator [64 values, keys] of one state, that
// of the 64 values from `first_value` on: `element` is where it is in device memory, null beyond the dimensions.
template <int kCount, class Visit>
__device__ __forceinline__ void for_each_state_element(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                       int head, int first_value, Visit visit) {
  const int lane_idx = threadIdx.x % kWarpThreads, warp_idx = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int first_row = first_value + 16 * warp_idx + lane_idx / 4, first_key = 2 * (lane_idx % 4);
  float* const state = states.data + sequence * states.sequence_stride + head * states.head_stride;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int key = 8 * (i / 4) + first_key + i % 2, value = first_row + (i / 2 % 2) * 8;
    const bool inside = key < states.key_dim && value < states.value_dim;
    visit(accum[i], inside ? state + key * states.key_stride + value * states.value_stride : nullptr);
  }
}

// Zeros where there is none.
template <int kCount>
__device__ __forceinline__ void load_transposed_state(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                      int head, int first_value) {
  for_each_state_element(accum, states, sequence, head, first_value, [](float& value, const float* element) {
    const float loaded = element != nullptr ? *element : 0;
    // NOTE: adding -0 changes nothing, but ptxas serialises products into registers that a predicated load wrote.
    asm volatile("add.f32 %0, %1, 0f80000000;" : "=f"(value) : "f"(loaded));
  });
}

// Asks for the state's keys below kKeys of the kValues values from `first_value` on in the L2 cache, by a whole warp.
template <int kValues, int kKeys>
__device__ __forceinline__ void prefetch_state(const KdaStates& states, int sequence, int head, int first_value) {
  constexpr int kSector = 8;  // floats
  const bool keys_first = states.key_stride != 1;
  const float* const state = states.data + sequence * states.sequence_stride + head * states.head_stride;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpThreads; i < kValues * kKeys / kSector; i += kWarpThreads) {
    const int row = keys_first ? i / (kValues / kSector) : i / (kKeys / kSector);
    const int column = i % ((keys_first ? kValues : kKeys) / kSector) * kSector;
    const int key = keys_first ? row : column, value = first_value + (keys_first ? column : row);
    if (key < states.key_dim && value < states.value_dim) {
      ptx::prefetch_l2(state + key * states.key_stride + value * states.value_stride);
    }
  }
}

// The accumulator of columns `first_column` to + 63 of the identity; columns below 0 are zeros.
template <int kCount>
__device__ __forceinline__ void set_transposed_identity(float (&accum)[kCount], int first_column) {
  const int lane_idx = threadIdx.x % kWarpThreads, warp_idx = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int first_row = first_column + 16 * warp_idx + lane_idx / 4, first_key = 2 * (lane_idx % 4);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    accum[i] = 8 * (i / 4) + first_key + i % 2 == first_row + (i / 2 % 2) * 8 ? 1 : 0;
  }
}

template <int kCount>
__device__ __forceinline__ void store_transposed_state(float (&accum)[kCount], const KdaStates& states, int sequence,
                                                       int head, int first_value) {
  for_each_state_element(accum, states, sequence, head, first_value, [](float value, float* element) {
    if (element != nullptr) *element = value;
  });
}

}  // namespace warpgrad::cuda::sm90
