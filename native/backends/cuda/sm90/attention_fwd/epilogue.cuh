#pragma once

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/softmax.cuh"
#include "backends/cuda/sm90/attention_fwd/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// Writes lse; returns in `factor` what turns the accumulators into the output.
template <class Config>
__device__ __forceinline__ void finish_rows(const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                            const ThreadRows& rows, const OnlineSoftmax<Config>& softmax,
                                            float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = softmax.row_sum(i);
    const float max = softmax.row_max[i] * params.log_scale;
    float lse;
    if (params.sink != nullptr) {
      constexpr float kLog2E = 1.44269504088896340736f;
      const float sink = params.sink[min(rows.head[i], params.num_heads - 1)];
      const float top = fmaxf(max, sink);
      const float finite = top == kMinusInfinity ? 0 : top;
      const float weight = ptx::ex2_approx((max - finite) * kLog2E);  // 0 for a row without keys
      const float total = sum * weight + ptx::ex2_approx((sink - finite) * kLog2E);
      lse = finite + __logf(total);
      factor[i] = total == 0 ? 0 : weight * ptx::rcp_approx(total);
    } else {
      lse = sum == 0 ? kMinusInfinity : max + __logf(sum);
      factor[i] = sum == 0 ? 0 : ptx::rcp_approx(sum);
    }
    if (threadIdx.x % 4 == 0 && rows.query[i] < work.q_len) {
      params.lse[work.lse_start + rows.head[i] * params.lse_head_stride + rows.query[i]] = lse;
    }
  }
}

// Row by row from shared memory, for the last tile of a packed sequence: two threads a row.
template <class Config>
__device__ __forceinline__ void copy_rows_from_smem(const AttentionFwdKernelParams& params,
                                                    const AttentionFwdWork& work, int warpgroup_idx,
                                                    uint32_t tile_address) {
  const int row = threadIdx.x % kWarpgroupThreads / 2;
  const int row_query = row * params.pack_reciprocal >> 16;
  const int query = work.q_first + warpgroup_idx * params.warpgroup_queries + row_query;
  if (row_query >= params.warpgroup_queries || query >= work.q_len) return;
  const int head = work.head_first + row - row_query * params.pack;
  uint16_t* gmem_out =
      static_cast<uint16_t*>(params.out) + ((work.out_row + query) * params.num_heads + head) * params.v_dim;
#pragma unroll 1
  for (int chunk = threadIdx.x % 2; 8 * chunk < params.v_dim; chunk += 2) {
    *reinterpret_cast<uint4*>(gmem_out + 8 * chunk) =
        ptx::ld_shared_v4(Config::OutTile::chunk_address(tile_address, row, chunk));
  }
}

// Out by way of shared memory and the copy engine, which clips rows and columns that out does not have; where rows that
// follow are another sequence's, threads copy instead.
template <class Config>
__device__ __forceinline__ void store_through_smem(AttentionFwdStorage<Config>& storage,
                                                   const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                                   int warpgroup_idx, const float (&accum_o)[Config::kOutRegisters],
                                                   const float (&factor)[2]) {
  using Tile = typename Config::OutTile;
  const bool issuer = threadIdx.x % kWarpgroupThreads == 0;
  uint8_t* smem_out = storage.smem_out.tiles[warpgroup_idx].bytes;
  const uint32_t tile_address = ptx::shared_address(smem_out);
  const int lane_idx = threadIdx.x % kWarpThreads;
  const int row = threadIdx.x / kWarpThreads % 4 * 16 + lane_idx % 16;
#pragma unroll
  for (int chunk = 0; chunk < Config::kVDim / 8; chunk += 2) {
    const float* o = accum_o + 4 * chunk;
    ptx::stmatrix_x4(Tile::chunk_address(tile_address, row, chunk + lane_idx / 16),
                     ptx::cvt_pair<Config::kType>(o[0] * factor[0], o[1] * factor[0]),
                     ptx::cvt_pair<Config::kType>(o[2] * factor[1], o[3] * factor[1]),
                     ptx::cvt_pair<Config::kType>(o[4] * factor[0], o[5] * factor[0]),
                     ptx::cvt_pair<Config::kType>(o[6] * factor[1], o[7] * factor[1]));
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(kBarrierWarpgroup + warpgroup_idx, kWarpgroupThreads);
  const int end = work.q_first + Config::kConsumerWarpgroups * params.warpgroup_queries;
  if (params.sequences != nullptr && end > work.q_len) {
    copy_rows_from_smem<Config>(params, work, warpgroup_idx, tile_address);
  } else if (issuer) {
    const int q_row = work.q_row_shift + work.q_first + warpgroup_idx * params.warpgroup_queries;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      ptx::tensor_store(params.tensor_map_out, {panel * kPanelColumns, 0, q_row, work.head_group, work.q_batch},
                        smem_out + panel * Tile::kPanelBytes);
    }
    ptx::bulk_commit_group();
  }
}

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

// Out straight from registers, where shared memory has no room for it: a quad exchanges its words so that each thread
// holds 8 neighbouring columns.
template <class Config>
__device__ __forceinline__ void store_directly(const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                               const ThreadRows& rows, const float (&accum_o)[Config::kOutRegisters],
                                               const float (&factor)[2]) {
  const int quad_lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint16_t* gmem_out = static_cast<uint16_t*>(params.out) +
                         ((work.out_row + rows.query[i]) * params.num_heads + rows.head[i]) * params.v_dim;
    const bool stored = rows.query[i] < work.q_len;
#pragma unroll
    for (int group = 0; group < Config::kVDim / 32; ++group) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* o = accum_o + 4 * (4 * group + j) + 2 * i;
        word[j] = ptx::cvt_pair<Config::kType>(o[0] * factor[i], o[1] * factor[i]);
      }
      quad_transpose(word);
      const int column = 8 * (4 * group + quad_lane);
      if (stored && column < params.v_dim) {
        *reinterpret_cast<uint4*>(gmem_out + column) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

}  // namespace warpgrad::cuda::sm90
