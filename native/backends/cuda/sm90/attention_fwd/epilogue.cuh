#pragma once

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/softmax.cuh"
#include "backends/cuda/sm90/attention_fwd/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// The denominators of a thread's two rows: `total` times e^`reference`, with the sink, while the accumulated
// exponentials weigh `weight`.
struct RowTotals {
  float reference[2], weight[2], total[2];
};

template <class Config>
__device__ __forceinline__ RowTotals row_totals(const AttentionFwdKernelParams& params, const ThreadRows& rows,
                                                const OnlineSoftmax<Config>& softmax) {
  constexpr float kLog2E = 1.44269504088896340736f;
  float sink[2] = {kMinusInfinity, kMinusInfinity};
  if (params.sink != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sink[i] = params.sink[min(rows.head[i], params.num_heads - 1)];
  }
  RowTotals result;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float max = softmax.row_max[i] * params.log_scale;
    const float top = fmaxf(max, sink[i]);
    result.reference[i] = top == kMinusInfinity ? 0 : top;
    result.weight[i] = ptx::ex2_approx((max - result.reference[i]) * kLog2E);  // 1 without a sink, 0 without keys
    const float sink_weight = ptx::ex2_approx((sink[i] - result.reference[i]) * kLog2E);
    result.total[i] = fmaf(softmax.row_sum(i), result.weight[i], sink_weight);
  }
  return result;
}

__device__ __forceinline__ void write_lse(const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                          const ThreadRows& rows, const RowTotals& totals) {
  const int thread_idx = ptx::read_thread_idx();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (thread_idx % 4 == 0 && rows.query[i] < work.q_len) {
      params.lse[work.lse_start + rows.head[i] * params.lse_head_stride + rows.query[i]] =
          totals.reference[i] + __logf(totals.total[i]);
    }
  }
}

// What turns the accumulators into the output.
__device__ __forceinline__ void output_factors(const RowTotals& totals, float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factor[i] = totals.total[i] == 0 ? 0 : totals.weight[i] * ptx::rcp_approx(totals.total[i]);
  }
}

// Row by row from shared memory, for the last tile of a packed sequence: two threads a row.
template <class Config>
__device__ __forceinline__ void copy_rows_from_smem(const AttentionFwdKernelParams& params,
                                                    const AttentionFwdWork& work, int warpgroup_idx,
                                                    uint32_t tile_address) {
  const int thread_idx = ptx::read_thread_idx();
  const int row = thread_idx % kWarpgroupThreads / 2;
  const int row_query = row * params.pack_reciprocal >> 16;
  const int query = work.q_first + warpgroup_idx * params.warpgroup_queries + row_query;
  if (row_query >= params.warpgroup_queries || query >= work.q_len) return;
  const int head = work.head_first + row - row_query * params.pack;
  uint16_t* gmem_out =
      static_cast<uint16_t*>(params.out) + ((work.out_row + query) * params.num_heads + head) * params.v_dim;
#pragma unroll 1
  for (int chunk = thread_idx % 2; 8 * chunk < params.v_dim; chunk += 2) {
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
  const int thread_idx = ptx::read_thread_idx();
  using Tile = typename Config::OutTile;
  const bool issuer = thread_idx % kWarpgroupThreads == 0;
  uint8_t* smem_out = storage.smem_out.tiles[warpgroup_idx].bytes;
  const uint32_t tile_address = ptx::shared_address(smem_out);
  const int lane_idx = thread_idx % kWarpThreads;
  const int row = thread_idx / kWarpThreads % 4 * 16 + lane_idx % 16;
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

// Out straight from registers, where shared memory has no room for it. Of two neighbouring groups of 8 columns, whose
// rows lie over a quad, a thread takes half of one group, so that a quad writes 32 bytes in a row.
template <class Config>
__device__ __forceinline__ void store_directly(const AttentionFwdKernelParams& params, const AttentionFwdWork& work,
                                               const ThreadRows& rows, const float (&accum_o)[Config::kOutRegisters],
                                               const float (&factor)[2]) {
  const int thread_idx = ptx::read_thread_idx();
  const bool odd = thread_idx & 1;
  const int first_column = 8 * (thread_idx & 1) + 4 * (thread_idx >> 1 & 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint16_t* gmem_out = static_cast<uint16_t*>(params.out) +
                         ((work.out_row + rows.query[i]) * params.num_heads + rows.head[i]) * params.v_dim +
                         first_column;
    const bool stored = rows.query[i] < work.q_len;
#pragma unroll
    for (int column = 0; column < Config::kVDim; column += 16) {
      const float* o = accum_o + column / 2 + 2 * i;
      const uint32_t left = ptx::cvt_pair<Config::kType>(o[0] * factor[i], o[1] * factor[i]);
      const uint32_t right = ptx::cvt_pair<Config::kType>(o[4] * factor[i], o[5] * factor[i]);
      const uint32_t received = __shfl_xor_sync(~0u, odd ? left : right, 1);
      if (stored && column + first_column < params.v_dim) {
        *reinterpret_cast<uint2*>(gmem_out + column) = odd ? make_uint2(received, right) : make_uint2(left, received);
      }
    }
  }
}

}  // namespace warpgrad::cuda::sm90
