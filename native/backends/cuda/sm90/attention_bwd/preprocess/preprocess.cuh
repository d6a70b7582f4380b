#pragma once

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/preprocess/params.h"
#include "backends/cuda/sm90/attention_bwd/rows.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"

namespace warpgrad::cuda::sm90 {

constexpr int kPreprocessThreads = 256;

// The dot product of eight pairs of 16-bit elements.
template <DType kType>
__device__ __forceinline__ float dot8(const uint4& a, const uint4& b) {
  const uint32_t words_a[4] = {a.x, a.y, a.z, a.w}, words_b[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = ptx::widen_pair<kType>(words_a[i]), y = ptx::widen_pair<kType>(words_b[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

// A block of threads a row block: delta = sum of dO * O, lse in units of log2, the accumulator of dQ set to zero. A
// row takes kRowThreads threads, each with 8 columns.
template <DType kType, int kRowThreads>
__global__ void __launch_bounds__(kPreprocessThreads)
    attention_bwd_preprocess_kernel(const __grid_constant__ AttentionBwdPreprocessParams params) {
  cudaTriggerProgrammaticLaunchCompletion();  // the main kernel's blocks may come as these go
  constexpr float kLog2E = 1.44269504088896340736f;
  const int row_block = blockIdx.x;
  const AttentionBwdRowBlock block = find_row_block(params.rows, row_block);
  const int row_thread = threadIdx.x % kRowThreads;
  // Finite, however large the sink is: an infinite lse is then more.
  constexpr float kLargest = 3.402823466e38f;
  const float sink = params.sink == nullptr ? 0 : ptx::min_nan(params.sink[block.head] * kLog2E, kLargest);
  const auto* out = static_cast<const uint16_t*>(params.out) + block.batch * params.out_batch_stride +
                    block.head * params.out_head_stride + block.first_row * params.out_row_stride;
  const auto* d_out = static_cast<const uint16_t*>(params.d_out) + block.batch * params.d_out_batch_stride +
                      block.head * params.d_out_head_stride + block.first_row * params.d_out_row_stride;
  const float* lse = params.lse + block.lse_start;
  float d_sink = 0;
  for (int row = threadIdx.x / kRowThreads; row < params.rows.block_m; row += kPreprocessThreads / kRowThreads) {
    float delta = 0;
    if (row < block.num_rows && 8 * row_thread < params.v_dim) {
      delta = dot8<kType>(*reinterpret_cast<const uint4*>(out + row * params.out_row_stride + 8 * row_thread),
                          *reinterpret_cast<const uint4*>(d_out + row * params.d_out_row_stride + 8 * row_thread));
    }
#pragma unroll
    for (int distance = kRowThreads / 2; distance > 0; distance /= 2) {
      delta += __shfl_xor_sync(~0u, delta, distance);
    }
    if (row_thread != 0) continue;
    // A row that no key is visible to, and one that does not exist, gets P = exp2(s - infinity) = 0.
    float lse_log2 = row < block.num_rows ? lse[row] * kLog2E : INFINITY;
    if (lse_log2 == -INFINITY) lse_log2 = INFINITY;
    const int64_t index = static_cast<int64_t>(row_block) * params.rows.block_m + row;
    params.lse_log2[index] = lse_log2;
    params.delta[index] = delta;
    if (params.sink != nullptr) d_sink -= ptx::ex2_approx(sink - lse_log2) * delta;
  }

  float4* accum = reinterpret_cast<float4*>(params.dq_accum + row_block * params.block_floats);
  for (int i = threadIdx.x; i < params.block_floats / 4; i += kPreprocessThreads) accum[i] = make_float4(0, 0, 0, 0);
  if (params.dq_turn != nullptr && threadIdx.x == 0) params.dq_turn[row_block] = 0;
  if (params.sink == nullptr) return;

  // In a fixed order, so that repeats are equal.
  __shared__ float parts[kPreprocessThreads];
  parts[threadIdx.x] = d_sink;
  __syncthreads();
  for (int count = kPreprocessThreads / 2; count > 0; count /= 2) {
    if (threadIdx.x < count) parts[threadIdx.x] += parts[threadIdx.x + count];
    __syncthreads();
  }
  if (threadIdx.x == 0) params.d_sink_parts[row_block] = parts[0];
}

}  // namespace warpgrad::cuda::sm90
