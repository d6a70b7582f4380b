#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"

namespace warpgrad::cuda::sm90 {

// Calls visit(element of Sᵀ [64 values, keys] as a wgmma accumulator, whether it exists, its place in `operand`).
template <int kCount, class Visit>
__device__ __forceinline__ void visit_state(const KdaStateOperand& operand, const KdaRecurrenceParams& params,
                                            const KdaRecurrenceWork& work, int warpgroup_idx, float (&state)[kCount],
                                            Visit visit) {
  float* matrix = operand.data + work.sequence * operand.sequence_stride + work.head * operand.head_stride;
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int first_value =
      (work.value_panel + warpgroup_idx) * kPanelColumns + thread / kWarpThreads * 16 + thread % kWarpThreads / 4;
  const int first_key = thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int key = first_key + i / 4 * 8 + i % 2;
    const int value = first_value + i % 4 / 2 * 8;
    const bool exists = operand.data != nullptr && key < params.key_dim && value < params.value_dim;
    visit(state[i], exists, matrix + key * operand.key_stride + value * operand.value_stride);
  }
}

}  // namespace warpgrad::cuda::sm90
