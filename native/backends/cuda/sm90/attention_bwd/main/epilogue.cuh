#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/tile/store_accumulator.cuh"

namespace warpgrad::cuda::sm90 {

// dK or dV of one warpgroup's 64 keys, times `factor`.
template <class Config>
__device__ __forceinline__ void store_rows(const AttentionBwdKernelParams& params, const AttentionBwdWork& work,
                                           int warpgroup_idx, const float (&accum)[Config::kGradRegisters],
                                           float factor, void* grad, int columns) {
  const int first_row = warpgroup_idx * kWarpgroupRows + threadIdx.x / kWarpThreads % 4 * 16 + threadIdx.x % 32 / 4;
  AccumulatorRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + 8 * i;
    rows.stored[i] = work.n * Config::kBlockN + row < work.k_len;
    rows.gmem[i] = static_cast<uint16_t*>(grad) + ((work.key_row + row) * params.kv_heads + work.kv_head) * columns;
    rows.factor[i] = factor;
  }
  store_accumulator<Config::kType>(accum, rows, columns);
}

}  // namespace warpgrad::cuda::sm90
