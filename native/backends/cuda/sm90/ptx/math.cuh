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

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-lg2
__device__ __forceinline__ float lg2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger one, NaN if either is.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// The smaller one, NaN if either is.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-min
__device__ __forceinline__ float min_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rsqrt
__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

// The two floats of such a pair.
template <DType kType>
__device__ __forceinline__ float2 widen_pair(uint32_t pair) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  if constexpr (kType == DType::kBFloat16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    float2 values;
    asm("{.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;}"
        : "=f"(values.x), "=f"(values.y)
        : "r"(pair));
    return values;
  }
}

// Multiplies two pairs of float16.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-mul
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace warpgrad::cuda::sm90::ptx
