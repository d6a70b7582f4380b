#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/tile/store_accumulator.cuh"

namespace warpgrad::cuda::sm90 {

// dK or dV of 64 keys from `first_row` of the block on, times `factor`: the columns from `first_column` on.
template <class Config, int kCount>
__device__ __forceinline__ void store_rows(const AttentionBwdKernelParams& params, const AttentionBwdWork& work,
                                           int first_row, const float (&accum)[kCount], float factor, void* grad,
                                           int columns, int first_column = 0) {
  AccumulatorRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + threadIdx.x / kWarpThreads % 4 * 16 + threadIdx.x % kWarpThreads / 4 + 8 * i;
    rows.stored[i] = work.n * Config::kBlockN + row < work.k_len;
    rows.gmem[i] =
        static_cast<uint16_t*>(grad) + ((work.key_row + row) * params.kv_heads + work.kv_head) * columns + first_column;
    rows.factor[i] = factor;
  }
  store_accumulator<Config::kType>(accum, rows, columns - first_column);
}

}  // namespace warpgrad::cuda::sm90
