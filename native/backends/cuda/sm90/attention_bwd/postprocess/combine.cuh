#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/postprocess/params.h"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

constexpr int kCombineThreads = 256;
constexpr int kCombineElements = 8;  // a thread

__device__ __forceinline__ void add_to(float4& sum, const float4& value) {
  sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
}

// Adds up the parts of dK and dV, first split first.
template <DType kType>
__global__ void __launch_bounds__(kCombineThreads)
    attention_bwd_combine_kernel(const __grid_constant__ AttentionBwdCombineParams params) {
  cudaGridDependencySynchronize();  // for the postprocess, and so for the main kernel
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kCombineThreads * kCombineElements;
#pragma unroll
  for (const auto& [parts, part_stride, grad, count] : params.gradients) {
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x) * kCombineElements;
    for (; i < count; i += stride) {
      float4 low = make_float4(0, 0, 0, 0), high = low;
      for (int split = 0; split < params.splits; ++split) {
        const float4* part = reinterpret_cast<const float4*>(parts + split * part_stride + i);
        add_to(low, part[0]);
        add_to(high, part[1]);
      }
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(grad) + i) =
          make_uint4(ptx::cvt_pair<kType>(low.x, low.y), ptx::cvt_pair<kType>(low.z, low.w),
                     ptx::cvt_pair<kType>(high.x, high.y), ptx::cvt_pair<kType>(high.z, high.w));
    }
  }
}

}  // namespace warpgrad::cuda::sm90
