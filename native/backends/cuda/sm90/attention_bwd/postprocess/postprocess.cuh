#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/params.h"
#include "backends/cuda/sm90/attention_bwd/rows.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
constexpr int kPostprocessThreads = Config::kDqParts * kWarpgroupThreads;

// dQ of one row block: from the order of the fragments, by way of shared memory, to rows of 16-bit elements.
template <class Config>
__global__ void __launch_bounds__(kPostprocessThreads<Config>)
    attention_bwd_postprocess_kernel(const __grid_constant__ AttentionBwdPostprocessParams params) {
  using Fragment = DqFragment<Config>;
  constexpr int kColumns = Config::kDqPanels * kPanelColumns;
  constexpr int kPitch = kColumns + 8;  // keeps the writes of a quad in different banks
  __shared__ __align__(16) uint16_t tile[Config::kBlockM * kPitch];
  cudaGridDependencySynchronize();  // for the main kernel
  const int row_block = blockIdx.x;
  const AttentionBwdRowBlock block = find_row_block(params.rows, row_block);
  if (block.num_rows == 0) return;

  const int part = threadIdx.x / kWarpgroupThreads;
  const float* accum = params.dq_accum + Fragment::offset(row_block, part, threadIdx.x);
#pragma unroll
  for (int i = 0; i < Fragment::kSteps; ++i) {
    const float4 value = *reinterpret_cast<const float4*>(accum + i * Fragment::kStep);
    const uint32_t first = ptx::cvt_pair<Config::kType>(value.x * params.scale, value.y * params.scale);
    const uint32_t third = ptx::cvt_pair<Config::kType>(value.z * params.scale, value.w * params.scale);
    uint16_t* target = tile + Fragment::row(part, i, threadIdx.x) * kPitch + Fragment::column(part, threadIdx.x);
    target[0] = static_cast<uint16_t>(first);
    target[kPitch] = static_cast<uint16_t>(first >> 16);
    target[8] = static_cast<uint16_t>(third);
    target[kPitch + 8] = static_cast<uint16_t>(third >> 16);
  }
  __syncthreads();
  const int chunks = params.qk_dim / 8;
  for (int i = threadIdx.x; i < block.num_rows * chunks; i += blockDim.x) {
    const int row = i / chunks, chunk = i - row * chunks;
    const int64_t dq_row =
        (block.batch * params.rows.q_rows + block.first_row + row) * params.rows.num_heads + block.head;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.dq) + dq_row * params.qk_dim + 8 * chunk) =
        *reinterpret_cast<const uint4*>(tile + row * kPitch + 8 * chunk);
  }
}

}  // namespace warpgrad::cuda::sm90
