#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gate_math.cuh"
#include "backends/cuda/sm90/kda/gradients/params.h"
#include "backends/cuda/sm90/kda/gradients/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/cluster.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace warpgrad::cuda::sm90 {

// One warp: what the gate of a tile's head needs, a tile ahead of the consumers.
template <class Config>
__device__ __forceinline__ void load_gate_scalars(KdaGradientsStorage<Config>& storage,
                                                  const KdaGradientsParams& params) {
  const int lane = threadIdx.x % kWarpThreads;
  for (KdaTileWalk<Config> walk; walk.is_inside(params); walk.advance()) {
    const auto [chunk, head] = walk.place(params);
    const float a = params.a_log ? kda_gate_slope(params.a_log[head]) : 1;
    const int rows = params.chunks[chunk].rows;
    const uint32_t slot = walk.scalar_slot();
    ptx::mbarrier_sleep(&storage.bar_gate_scalars_empty[slot], walk.scalar_parity() ^ 1);
    KdaGateScalars& scalars = storage.gate_scalars[slot];
    for (int key = lane; key < 128; key += kWarpThreads) {
      const int own_key = kda_first_key<Config>() + key;
      const bool present = params.dt_bias && own_key < params.key_dim;
      scalars.bias[key] = present ? params.dt_bias[head * params.dt_bias_stride + own_key] : 0;
    }
    if (lane == 0) {
      scalars.a = a;
      scalars.rows = rows;
    }
    ptx::mbarrier_arrive(&storage.bar_gate_scalars_full[slot]);
  }
}

__device__ __forceinline__ void store_scalar(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else if (dtype == DType::kBFloat16) {
    static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(data)[index] = __float2half_rn(value);
  }
}

// The sums over the block's own keys go to the cluster's other block, which has the other 128 keys and sends its own.
// Two slots, since it may be a tile ahead.
template <class Config>
__device__ __forceinline__ void exchange_key_sums(KdaGradientsStorage<Config>& storage,
                                                  const KdaTileWalk<Config>& walk) {
  const uint32_t lane = threadIdx.x % kWarpThreads, slot = walk.scalar_slot(), other_block = 1 - blockIdx.x;
  uint64_t* const full = &storage.bar_other_sums_full[slot];
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, sizeof(storage.other_sums[slot]));
#pragma unroll 1
  for (int i = 0; i < kNumKdaKeySums; ++i) {
#pragma unroll 1
    for (uint32_t token = lane; token < 64; token += kWarpThreads) {
      float sum = 0;
      for (int warp = 0; warp < Config::kConsumerWarps; ++warp) sum += storage.key_sums[i][warp][token];
      ptx::cluster_store(&storage.other_sums[slot][i][token], sum, full, other_block);
    }
  }
  ptx::mbarrier_wait_cluster(full, walk.scalar_parity());
}

// dbeta = k N = dv E / beta. The former mostly has the smaller error, but where its terms cancel (keys that repeat),
// the latter: told by how far they are apart. Through the logits, beta = top sigmoid(b), nothing is divided, nor is it
// where beta is next to nothing.
__device__ __forceinline__ float finish_dbeta(float k_n, float dv_e, float beta, float top) {
  const float by_keys = beta * k_n;
  const bool cancels = 16 * fabsf(by_keys - dv_e) > fabsf(dv_e);
  if (top != 0) return (cancels ? dv_e : by_keys) * (1 - beta / top);
  return cancels && fabsf(beta) > 0x1p-20f ? dv_e / beta : k_n;
}

// One warp: sums over the keys of all warps, in their order; those of q dq and k dk go back to the consumers, dbeta
// leaves from here.
template <class Config>
__device__ __forceinline__ void add_up_keys(KdaGradientsStorage<Config>& storage, const KdaGradientsParams& params) {
  const int lane = threadIdx.x % kWarpThreads;
  for (KdaTileWalk<Config> walk; walk.is_inside(params); walk.advance()) {
    const uint32_t slot = walk.scalar_slot();
    ptx::mbarrier_sleep(&storage.bar_token_scalars_full[slot], walk.scalar_parity());
    ptx::mbarrier_sleep(&storage.bar_key_sums_full, walk.parity());
    bool exchanged = false;
    if constexpr (Config::kWide) {
      ptx::mbarrier_sleep(&storage.bar_scores_full, walk.parity());
      exchanged = params.key_parts == 2;
      if (exchanged) exchange_key_sums(storage, walk);
    }
    float dbeta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane + half * kWarpThreads;
      float sums[kNumKdaKeySums] = {};
      for (int warp = 0; warp < Config::kConsumerWarps; ++warp) {
#pragma unroll
        for (int i = 0; i < kNumKdaKeySums; ++i) sums[i] += storage.key_sums[i][warp][token];
      }
      if constexpr (Config::kWide) {
#pragma unroll
        for (int i = 0; i < kNumKdaKeySums; ++i) sums[i] += exchanged ? storage.other_sums[slot][i][token] : 0;
      }
      const KdaTokenScalars& scalars = storage.token_scalars[slot];
      const float beta = scalars.beta[token];
      const float q_norm = scalars.q_norm[token], k_norm = scalars.k_norm[token];
      const float a = storage.a_diagonal[token], a_beta = a * beta, q_k = q_norm * k_norm * sums[kKdaSumQK];
      const float k_n = fmaf(a, q_k, sums[kKdaSumSource]);
      KdaTokenSums& token_sums = storage.token_sums;
      token_sums.q_dq[token] = params.l2_norm ? q_norm * fmaf(a_beta, q_k, sums[kKdaSumQ]) : 0;
      token_sums.k_dk[token] = params.l2_norm ? k_norm * fmaf(beta, k_n, sums[kKdaSumM]) : 0;
      token_sums.k_to_dq[token] = a_beta * k_norm;
      token_sums.q_to_dk[token] = a_beta * q_norm;
      dbeta[half] = finish_dbeta(k_n, -storage.b_diagonal[token], beta, params.beta_top);
    }
    ptx::mbarrier_arrive(&storage.bar_token_sums_full);
    ptx::mbarrier_arrive(&storage.bar_token_scalars_empty[slot]);
    if constexpr (Config::kWide) {
      ptx::mbarrier_arrive(&storage.bar_scores_empty);
      if (kda_first_key<Config>() > 0) continue;
    }
    const KdaTilePlace place = walk.place(params);
    const KdaChunk chunk = params.chunks[place.chunk];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane + half * kWarpThreads;
      const int64_t row = static_cast<int64_t>(chunk.batch) * params.tokens + chunk.token + token;
      if (token < chunk.rows)
        store_scalar(params.dbeta, params.dbeta_type, row * params.value_heads + place.head, dbeta[half]);
    }
  }
}

// One warp: the gradients out of the slots they were left in. A ragged chunk's rows leave by plain stores, since the
// copy engine would write all 64.
template <class Config>
class KdaGradientsStorer {
 public:
  __device__ __forceinline__ KdaGradientsStorer(KdaGradientsStorage<Config>& storage, const KdaGradientsParams& params)
      : storage_(storage), params_(params), lane_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run() {
    for (; walk_.is_inside(params_); walk_.advance()) {
      place_ = walk_.place(params_);
      ptx::mbarrier_sleep(&storage_.bar_dg_full, walk_.parity());
      store<Config::kGatePanels, Config::kGatePanelColumns, Config::kGateBytes>(
          storage_.smem_g[walk_.g_slot()], params_.tensor_map_dg, params_.dg, params_.key_dim, first_key_);
      store_d_a_log();
      release(&storage_.bar_g_empty[walk_.g_slot()]);
      ptx::mbarrier_sleep(&storage_.bar_dqk_full, walk_.parity());
#pragma unroll 1
      for (int is_q = 0; is_q < 2; ++is_q) {
        store<2, 64, 2>(is_q ? storage_.smem_q.bytes : storage_.smem_k.bytes,
                        is_q ? params_.tensor_map_dq : params_.tensor_map_dk, is_q ? params_.dq : params_.dk,
                        params_.key_dim, first_key_);
      }
      release(&storage_.bar_qk_empty);
    }
    if (lane_ == 0) ptx::bulk_wait_group<0>();
  }

 private:
  // NOTE: the chunk is read anew each time: this warp has few registers.
  template <int kPanels, int kColumns, int kElementBytes>
  __device__ __forceinline__ void store(const uint8_t* smem, const CUtensorMap& map, uint8_t* gmem, int columns,
                                        int first_column = 0) {
    const KdaChunk chunk = params_.chunks[place_.chunk];
    if (chunk.rows == 64) {
      if (lane_ != 0) return;
      ptx::fence_proxy_async();  // here rather than in the consumers, where it takes time
#pragma unroll 1
      for (int i = 0; i < kPanels; ++i) {
        ptx::tensor_store(map, {first_column + i * kColumns, chunk.token, place_.head, chunk.batch},
                          smem + i * kKdaPanelBytes);
      }
      ptx::bulk_commit_group();
      return;
    }
    const int row_bytes = columns * kElementBytes, lane_byte = first_column * kElementBytes + 16 * lane_;
    if (lane_byte >= row_bytes || lane_ >= kPanels * 8) return;
    const int64_t token = static_cast<int64_t>(chunk.batch) * params_.tokens + chunk.token;
    uint8_t* to = gmem + (token * params_.value_heads + place_.head) * row_bytes + lane_byte;
    const int64_t step = static_cast<int64_t>(params_.value_heads) * row_bytes;
#pragma unroll 1
    for (int row = 0; row < chunk.rows; ++row, to += step) {
      const uint32_t from = KdaTokenTile::chunk_address(ptx::shared_address(smem), row, lane_);
      *reinterpret_cast<uint4*>(to) = ptx::ld_shared_v4(from);
    }
  }

  // Gives a slot back once its content has been read: every lane for itself, since each reads rows of ragged chunks.
  __device__ __forceinline__ void release(uint64_t* empty) {
    if (lane_ == 0) ptx::bulk_wait_group_read<0>();
    ptx::mbarrier_arrive(empty);
  }

  __device__ __forceinline__ void store_d_a_log() {
    if (lane_ != 0 || !params_.d_a_log_parts) return;
    float sum = 0;
    for (int warp = 0; warp < Config::kConsumerWarps; ++warp) sum += storage_.d_a_log[warp];
    params_.d_a_log_parts[static_cast<int64_t>(blockIdx.x) * params_.num_tiles + walk_.tile] = sum;
  }

  KdaGradientsStorage<Config>& storage_;
  const KdaGradientsParams& params_;
  const int lane_;
  const int first_key_ = kda_first_key<Config>();
  KdaTileWalk<Config> walk_;
  KdaTilePlace place_{};
};

}  // namespace warpgrad::cuda::sm90
