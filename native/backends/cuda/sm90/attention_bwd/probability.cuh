#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/params.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// Turns the product of a query and a key into the factor of dS = P (dP - delta): P = exp(S - lse), with softcap times
// the derivative of the tanh. Gives P itself.
template <class Config>
__device__ __forceinline__ float exponentiate_score(float& s, float lse_log2, const AttentionBwdKernelParams& params) {
  if constexpr (Config::kMappedScores) {
    s = fmaf(-2, ptx::rcp_approx(1 + ptx::ex2_approx(s * params.map_scale)), 1);
  }
  // At most 1: where scores are large, the rounding of lse alone could make the exponent more than float32 holds.
  const float p = ptx::ex2_approx(ptx::min_nan(fmaf(s, params.exp2_scale, -lse_log2), 0));
  s = Config::kMappedScores ? p * fmaf(-s, s, 1) : p;
  return p;
}

// Which elements of a warpgroup's scores, 64 queries x some keys, are visible. A thread holds, of the two queries lane
// / 4 and lane / 4 + 8 of its warp's sixteen, the keys 8 j + 2 (lane % 4) + {0, 1}: elements 4 j + {0, 1} and 4 j + {2,
// 3}.
class VisibleScores {
 public:
  template <class Work>
  __device__ __forceinline__ VisibleScores(const Work& work, int first_query, int first_key) {
    const int thread_idx = ptx::read_thread_idx(), lane_idx = thread_idx % kWarpThreads;
    const int query = first_query + thread_idx / kWarpThreads % 4 * 16 + lane_idx / 4;
    const int key = first_key + 2 * (lane_idx % 4);
    low_ = query + work.key_shift_low - key;
    high_ = query + work.key_shift_high - key;
    end_ = work.k_len - key;
  }

  __device__ __forceinline__ bool operator()(int element) const {
    const int row = 8 * (element >> 1 & 1), column = 8 * (element / 4) + (element & 1);
    return column >= low_ + row && column <= high_ + row && column < end_;
  }

 private:
  int low_, high_, end_;
};

}  // namespace warpgrad::cuda::sm90
