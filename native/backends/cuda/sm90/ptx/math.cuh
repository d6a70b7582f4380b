#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace warpgrad::cuda::sm90::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rounds two floats to a pair of 16-bit elements, `low` at the lower address.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
template <DType kType>
__device__ __forceinline__ uint32_t cvt_pair(float low, float high) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  uint32_t pair;
  if constexpr (kType == DType::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// The sum of what cvt_pair has packed.
template <DType kType>
__device__ __forceinline__ float sum_pair(uint32_t pair) {
  if constexpr (kType == DType::kBFloat16) {
    return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000);
  } else {
    float low, high;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
        : "=f"(low), "=f"(high)
        : "r"(pair));
    return low + high;
  }
}

}  // namespace warpgrad::cuda::sm90::ptx
