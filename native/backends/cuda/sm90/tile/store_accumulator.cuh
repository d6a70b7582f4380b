#pragma once

#include <cstdint>

#include "backends/cuda/sm90/ptx/math.cuh"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

// The two rows of a wgmma accumulator that a thread has a share in.
struct AccumulatorRows {
  uint16_t* gmem[2];  // where the row's first column goes
  bool stored[2];
  float factor[2];
};

// Transposes 4 x 4 words over a quad: lane t ends with word t of each lane.
__device__ __forceinline__ void quad_transpose(uint32_t (&word)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = distance == 1 ? 2 * pair : pair;
      const int high = low + distance;
      const uint32_t received = __shfl_xor_sync(~0u, upper ? word[low] : word[high], distance);
      word[low] = upper ? received : word[low];
      word[high] = upper ? word[high] : received;
    }
  }
}

// Writes `columns` columns (a multiple of 8) of an accumulator, rounded to kType, straight from registers: a quad
// exchanges its words so that each thread holds 8 neighbouring columns.
template <DType kType, int kCount>
__device__ __forceinline__ void store_accumulator(const float (&accum)[kCount], const AccumulatorRows& rows,
                                                  int columns) {
  const int quad_lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int group = 0; group < kCount / 16; ++group) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* value = accum + 4 * (4 * group + j) + 2 * i;
        word[j] = ptx::cvt_pair<kType>(value[0] * rows.factor[i], value[1] * rows.factor[i]);
      }
      quad_transpose(word);
      const int column = 8 * (4 * group + quad_lane);
      if (rows.stored[i] && column < columns) {
        *reinterpret_cast<uint4*>(rows.gmem[i] + column) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

}  // namespace warpgrad::cuda::sm90
