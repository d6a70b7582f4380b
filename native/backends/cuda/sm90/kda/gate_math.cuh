#pragma once

#include <cmath>

#include "backends/cuda/sm90/ptx/math.cuh"

namespace warpgrad::cuda::sm90 {

constexpr float kKdaLog2E = 1.44269504088896340736f;

// exp(A_log), at most 2^100: a gate with that is at its limit, and what a multiplies stays finite.
__device__ __forceinline__ float kda_gate_slope(float a_log) {
  return ptx::ex2_approx(ptx::min_nan(a_log * kKdaLog2E, 100));
}

// log2(1 + 2^z) = max(z, 0) + log2(1 + e), e = 2^-|z|. The latter is e times a polynomial (minimax, relative error
// 8.4e-6): small ones keep their precision, which 1 + e would lose, and no logarithm is waited for. One kind of
// operation for all elements after the other, since each takes long.
template <int kElements>
__device__ __forceinline__ void kda_log2_softplus(const float (&z)[kElements], const float (&e)[kElements],
                                                  float* softplus) {
  constexpr float kSeries[] = {-0.0344359055f, 0.146032885f, -0.303036213f, 0.469174057f, -0.720426142f, 1.44268286f};
#pragma unroll
  for (int i = 0; i < kElements; ++i) softplus[i] = kSeries[0];
#pragma unroll
  for (int power = 1; power < 6; ++power) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) softplus[i] = fmaf(softplus[i], e[i], kSeries[power]);
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) softplus[i] = fmaf(softplus[i], e[i], fmaxf(z[i], 0));
}

}  // namespace warpgrad::cuda::sm90
