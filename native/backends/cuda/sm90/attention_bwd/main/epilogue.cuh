#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/tile/store_accumulator.cuh"

namespace warpgrad::cuda::sm90 {

// Where dK or dV goes: rows of 16-bit elements, or this split's part of them in float32.
struct AttentionBwdGradTarget {
  void* grad;
  float* parts;
  int columns;
};
__device__ __forceinline__ AttentionBwdGradTarget keys_target(const AttentionBwdKernelParams& params) {
  return {params.dk, params.dk_parts, params.qk_dim};
}
__device__ __forceinline__ AttentionBwdGradTarget values_target(const AttentionBwdKernelParams& params) {
  return {params.dv, params.dv_parts, params.v_dim};
}

// The same as store_accumulator, in float32 to `row`.
template <int kCount>
__device__ __forceinline__ void store_part(const float (&accum)[kCount], int i, float* row, float factor, int columns) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int column = 8 * j + 2 * (threadIdx.x % 4);
    const float* value = accum + 4 * j + 2 * i;
    if (column < columns) {
      *reinterpret_cast<float2*>(row + column) = make_float2(value[0] * factor, value[1] * factor);
    }
  }
}

// dK or dV of 64 keys from `first_row` of the block on, times `factor`: the columns from `first_column` on.
template <class Config, int kCount>
__device__ __forceinline__ void store_rows(const AttentionBwdKernelParams& params, const AttentionBwdWork& work,
                                           int first_row, const float (&accum)[kCount], float factor,
                                           const AttentionBwdGradTarget& target, int first_column = 0) {
  AccumulatorRows rows;
  int64_t offset[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + threadIdx.x / kWarpThreads % 4 * 16 + threadIdx.x % kWarpThreads / 4 + 8 * i;
    rows.stored[i] = work.n * Config::kBlockN + row < work.k_len;
    offset[i] = ((work.key_row + row) * params.kv_heads + work.kv_head) * target.columns + first_column;
    rows.gmem[i] = static_cast<uint16_t*>(target.grad) + offset[i];
    rows.factor[i] = factor;
  }
  const int columns = target.columns - first_column;
  if (params.splits == 1) return store_accumulator<Config::kType>(accum, rows, columns);
  float* part = target.parts + work.split * params.key_rows * params.kv_heads * target.columns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (rows.stored[i]) store_part(accum, i, part + offset[i], factor, columns);
  }
}

}  // namespace warpgrad::cuda::sm90
