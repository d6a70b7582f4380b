#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/params.h"
#include "backends/cuda/sm90/kda/gradients/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
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
  for (KdaTileWalk walk; walk.tile < params.num_tiles; walk.advance()) {
    const int head = walk.tile % params.value_heads;
    const float a = params.a_log ? __expf(params.a_log[head]) : 1;
    const int rows = params.chunks[walk.tile / params.value_heads].rows;
    const uint32_t slot = walk.scalar_slot();
    ptx::mbarrier_sleep(&storage.bar_gate_scalars_empty[slot], walk.scalar_parity() ^ 1);
    KdaGateScalars& scalars = storage.gate_scalars[slot];
    for (int key = lane; key < 128; key += kWarpThreads) {
      const bool present = params.dt_bias && key < params.key_dim;
      scalars.bias[key] = present ? params.dt_bias[head * params.dt_bias_stride + key] : 0;
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

// One warp: sums over the keys of all warps, in their order; those of q dq and k dk go back to the consumers, dbeta
// leaves from here.
template <class Config>
__device__ __forceinline__ void add_up_keys(KdaGradientsStorage<Config>& storage, const KdaGradientsParams& params) {
  const int lane = threadIdx.x % kWarpThreads;
  for (KdaTileWalk walk; walk.tile < params.num_tiles; walk.advance()) {
    const int head = walk.tile % params.value_heads;
    const KdaChunk chunk = params.chunks[walk.tile / params.value_heads];
    const uint32_t slot = walk.scalar_slot();
    ptx::mbarrier_sleep(&storage.bar_token_scalars_full[slot], walk.scalar_parity());
    ptx::mbarrier_sleep(&storage.bar_key_sums_full, walk.parity());
    float dbeta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane + half * kWarpThreads;
      float sums[kNumKdaKeySums] = {};
      for (int warp = 0; warp < Config::kConsumerWarps; ++warp) {
#pragma unroll
        for (int i = 0; i < kNumKdaKeySums; ++i) sums[i] += storage.key_sums[i][warp][token];
      }
      const KdaTokenScalars& scalars = storage.token_scalars[slot];
      storage.q_dq[token] = params.l2_norm ? scalars.q_norm[token] * sums[kKdaSumQ] : 0;
      storage.k_dk[token] = params.l2_norm ? scalars.k_norm[token] * sums[kKdaSumK] : 0;
      dbeta[half] = sums[kKdaSumBeta] + storage.value_sums[0][token] + storage.value_sums[1][token];
      const float beta = scalars.beta[token];
      if (params.beta_top != 0) dbeta[half] *= beta * (1 - beta / params.beta_top);
    }
    ptx::mbarrier_arrive(&storage.bar_token_sums_full);
    ptx::mbarrier_arrive(&storage.bar_token_scalars_empty[slot]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane + half * kWarpThreads;
      const int64_t row = static_cast<int64_t>(chunk.batch) * params.tokens + chunk.token + token;
      if (token < chunk.rows)
        store_scalar(params.dbeta, params.dbeta_type, row * params.value_heads + head, dbeta[half]);
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
    for (; walk_.tile < params_.num_tiles; walk_.advance()) {
      ptx::mbarrier_sleep(&storage_.bar_dv_full, walk_.parity());
      store<2, 64, 2>(storage_.smem_v.bytes, params_.tensor_map_dv, params_.dv, params_.value_dim);
      release(kKdaV);
      ptx::mbarrier_sleep(&storage_.bar_dg_full, walk_.parity());
      store<Config::kGatePanels, Config::kGatePanelColumns, Config::kGateBytes>(storage_.smem_g, params_.tensor_map_dg,
                                                                                params_.dg, params_.key_dim);
      store_d_a_log();
      release(kKdaG);
      ptx::mbarrier_sleep(&storage_.bar_dqk_full, walk_.parity());
      store<2, 64, 2>(storage_.smem_q.bytes, params_.tensor_map_dq, params_.dq, params_.key_dim);
      store<2, 64, 2>(storage_.smem_k.bytes, params_.tensor_map_dk, params_.dk, params_.key_dim);
      release(kKdaK);
      release(kKdaQ);
    }
    if (lane_ == 0) ptx::bulk_wait_group<0>();
  }

 private:
  // NOTE: the chunk is read anew each time: this warp has few registers.
  template <int kPanels, int kColumns, int kElementBytes>
  __device__ __forceinline__ void store(const uint8_t* smem, const CUtensorMap& map, uint8_t* gmem, int columns) {
    const int head = walk_.tile % params_.value_heads;
    const KdaChunk chunk = params_.chunks[walk_.tile / params_.value_heads];
    if (chunk.rows == 64) {
      if (lane_ != 0) return;
      ptx::fence_proxy_async();  // here rather than in the consumers, where it takes time
      for (int i = 0; i < kPanels; ++i) {
        ptx::tensor_store(map, {i * kColumns, chunk.token, head, chunk.batch}, smem + i * kKdaPanelBytes);
      }
      ptx::bulk_commit_group();
      return;
    }
    const int row_bytes = columns * kElementBytes;
    if (16 * lane_ >= row_bytes) return;
    const int64_t token = static_cast<int64_t>(chunk.batch) * params_.tokens + chunk.token;
    uint8_t* to = gmem + (token * params_.value_heads + head) * row_bytes + 16 * lane_;
    const int64_t step = static_cast<int64_t>(params_.value_heads) * row_bytes;
#pragma unroll 1
    for (int row = 0; row < chunk.rows; ++row, to += step) {
      const uint32_t from = KdaTokenTile::chunk_address(ptx::shared_address(smem), row, lane_);
      *reinterpret_cast<uint4*>(to) = ptx::ld_shared_v4(from);
    }
  }

  // Gives a slot back once its content has been read.
  __device__ __forceinline__ void release(KdaGradientsInput input) {
    __syncwarp();
    if (lane_ != 0) return;
    ptx::bulk_wait_group_read<0>();
    ptx::mbarrier_arrive(&storage_.bar_empty[input]);
  }

  __device__ __forceinline__ void store_d_a_log() {
    if (lane_ != 0 || !params_.d_a_log_parts) return;
    float sum = 0;
    for (int warp = 0; warp < Config::kConsumerWarps; ++warp) sum += storage_.d_a_log[warp];
    params_.d_a_log_parts[walk_.tile] = sum;
  }

  KdaGradientsStorage<Config>& storage_;
  const KdaGradientsParams& params_;
  const int lane_;
  KdaTileWalk walk_;
};

}  // namespace warpgrad::cuda::sm90
