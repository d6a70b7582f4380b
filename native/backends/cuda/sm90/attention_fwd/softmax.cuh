#pragma once

// The online softmax of one warpgroup's scores. A thread holds, of the two rows lane / 4 and lane / 4 + 8 of its warp's
// sixteen, the columns 8 j + 2 (lane % 4) + {0, 1}: elements 4 j + {0, 1} and 4 j + {2, 3}.

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/schedule.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

constexpr float kMinusInfinity = -INFINITY;

// The element's row: 0 or 1.
__device__ constexpr int row_of(int element) {
  return (element >> 1) & 1;
}
__device__ constexpr int column_of(int element) {
  return 8 * (element / 4) + (element & 1);
}

// Reductions over the four threads that share a row.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ int quad_max(int value) {
  value = max(value, __shfl_xor_sync(~0u, value, 1));
  return max(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// The two rows that a thread owns of its warpgroup's 64.
struct ThreadRows {
  int query[2];  // in the sequence; rows that no query has are at or past its length
  int head[2];
};

__device__ __forceinline__ ThreadRows thread_rows(const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                                  int warpgroup_idx) {
  const int thread_idx = ptx::read_thread_idx();
  const int warp_idx = thread_idx / kWarpThreads % 4;
  ThreadRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp_idx * 16 + thread_idx % kWarpThreads / 4 + 8 * i;
    const int query = row * params.pack_reciprocal >> 16;
    rows.head[i] = work.head_first + row - query * params.pack;
    rows.query[i] =
        query < params.warpgroup_queries ? work.q_first + warpgroup_idx * params.warpgroup_queries + query : work.q_len;
  }
  return rows;
}

template <class Config>
class OnlineSoftmax {
 public:
  static constexpr int kElements = Config::kScoreRegisters;
  using Params = AttentionFwdKernelParams;

  float row_max[2];
  float correction[2];  // what the step multiplied the sums with, and the output has still to be
  bool grew;            // whether any correction in the warp differs from 1

  __device__ __forceinline__ explicit OnlineSoftmax(const Params& params) : params_(params) {}

  __device__ __forceinline__ float row_sum(int row) const { return quad_sum(sums_[row]); }

  // Before the first key tile of every tile.
  __device__ __forceinline__ void reset() {
    row_max[0] = row_max[1] = kMinusInfinity;
    offset_[0] = offset_[1] = 0;
    sums_[0] = sums_[1] = 0;
  }

  // Turns the scores of a key tile into exponentials relative to the running maximum.
  __device__ __forceinline__ void step(float (&scores)[kElements]) {
    float tile_max[2];
    find_max(scores, tile_max);
    grew = __any_sync(~0u, tile_max[0] > row_max[0] || tile_max[1] > row_max[1]);
    if (grew) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float next = fmaxf(tile_max[row], row_max[row]);
        // A row that has seen no key yet: exponents -inf - 0 instead of -inf + inf.
        const float finite = next == kMinusInfinity ? 0 : next;
        correction[row] = ptx::ex2_approx((row_max[row] - finite) * params_.exp2_scale);
        row_max[row] = next;
        offset_[row] = finite * params_.exp2_scale;
        sums_[row] *= correction[row];
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      scores[i] = ptx::ex2_approx(fmaf(scores[i], params_.exp2_scale, -offset_[row_of(i)]));
      sums_[row_of(i)] += scores[i];
    }
  }

  // Makes the sums those of the rounded probabilities.
  __device__ __forceinline__ void sum_rounded(const uint32_t (&frag_p)[Config::kProbabilityRegisters]) {
    sums_[0] = sums_[1] = 0;
#pragma unroll
    for (int i = 0; i < Config::kProbabilityRegisters; ++i) {
      const float2 pair = ptx::widen_pair<Config::kType>(frag_p[i]);
      sums_[row_of(2 * i)] += pair.x + pair.y;
    }
  }

  // Softcap: tanh by its exponential, whose absolute error is that of float32 (tanh.approx has 5e-4).
  __device__ __forceinline__ void map(float (&scores)[kElements]) const {
    if (params_.map_scale == 0) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) scores[i] = -scores[i];
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float exponential = ptx::ex2_approx(scores[i] * params_.map_scale);
        scores[i] = fmaf(-2, ptx::rcp_approx(1 + exponential), 1);
      }
    }
  }

  // A bit an element instead of two comparisons: ptxas moves seven bits at a time to predicates.
  __device__ __forceinline__ static void mask(float (&scores)[kElements], const AttentionFwdWork& work,
                                              const ThreadRows& rows, int n) {
    const int first_column = n * Config::kBlockN + 2 * (ptx::read_thread_idx() & 3);
    constexpr int kWords = (kElements / 2 + 31) / 32;
    uint32_t visible[2][kWords];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int low = rows.query[row] + work.key_shift_low - first_column;
      const int high = min(rows.query[row] + work.key_shift_high, work.k_len - 1) - first_column;
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        const int begin = 128 * word;
        visible[row][word] = elements_up_to(high - begin) & ~elements_up_to(low - 1 - begin);
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int place = i / 4 * 2 + (i & 1);
      if (!(visible[row_of(i)][place / 32] >> place % 32 & 1)) scores[i] = kMinusInfinity;
    }
  }

 private:
  // A bit for each of 32 elements of a row, in the order of their columns: set where the column, counted from the first
  // element's, is at most `column`.
  __device__ __forceinline__ static uint32_t elements_up_to(int column) {
    const int last = max(column, -1);
    return __funnelshift_lc(0, 1, 2 * (last >> 3) + min(last & 7, 1) + 1) - 1;
  }

  // Integer maxima take three operands an instruction. Their order is that of floats unless both are negative; the
  // running maximum takes part, so a warp falls back only while a row of it has seen nothing but negative scores.
  __device__ __forceinline__ void find_max(const float (&scores)[kElements], float (&tile_max)[2]) const {
    const int start[2] = {__float_as_int(row_max[0]), __float_as_int(row_max[1])};
    int best[4] = {start[0], start[0], start[1], start[1]};
#pragma unroll
    for (int i = 0; i < kElements; i += 8) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        best[j] = max(max(best[j], __float_as_int(scores[i + j])), __float_as_int(scores[i + 4 + j]));
      }
    }
    const int row_best[2] = {quad_max(max(best[0], best[1])), quad_max(max(best[2], best[3]))};
    tile_max[0] = __int_as_float(row_best[0]);
    tile_max[1] = __int_as_float(row_best[1]);
    if (__any_sync(~0u, (row_best[0] | row_best[1]) < 0)) {
      float slow[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
      for (int i = 4; i < kElements; ++i) slow[i & 3] = fmaxf(slow[i & 3], scores[i]);
      tile_max[0] = quad_max(fmaxf(slow[0], slow[1]));
      tile_max[1] = quad_max(fmaxf(slow[2], slow[3]));
    }
  }

  const Params& params_;
  float offset_[2];  // row_max * exp2_scale, 0 while a row has seen no key
  float sums_[2];    // of this thread's columns
};

}  // namespace warpgrad::cuda::sm90
