#pragma once

// Matrix products of a warp, D += A B in float32:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma

#include <cstdint>

#include "core/dtype.h"

namespace warpgrad::cuda::sm90::ptx {

#define WG_MMA_M16N8K16(type)                                                         \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

#define WG_MMA_M16N8K8(type)                                              \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." type "." type      \
               ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])           \
               : "r"(a0), "r"(a1), "r"(b))

// `d` has four floats, `a` four registers.
template <DType kType>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  if constexpr (kType == DType::kBFloat16) {
    WG_MMA_M16N8K16("bf16");
  } else {
    WG_MMA_M16N8K16("f16");
  }
}

template <DType kType>
__device__ __forceinline__ void mma_m16n8k8(float* d, uint32_t a0, uint32_t a1, uint32_t b) {
  static_assert(kType == DType::kBFloat16 || kType == DType::kFloat16);
  if constexpr (kType == DType::kBFloat16) {
    WG_MMA_M16N8K8("bf16");
  } else {
    WG_MMA_M16N8K8("f16");
  }
}

#undef WG_MMA_M16N8K16
#undef WG_MMA_M16N8K8

// Operands are bits of float32, of which the lower 13 are ignored.
__device__ __forceinline__ void mma_m16n8k8_tf32(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace warpgrad::cuda::sm90::ptx
