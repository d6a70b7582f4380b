#pragma once

// What comes into shared memory before the work begins.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/gate.cuh"
#include "backends/cuda/sm90/kda/prepare/memory.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"

namespace warpgrad::cuda::sm90 {

struct KdaPrepareBarriers {
  uint64_t g, qk;  // each completes once
};

// One thread: the tiles of a chunk. Rows of the next sequence may come too.
template <class Config>
__device__ __forceinline__ void load_tiles(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                           uint8_t* image, KdaPrepareBarriers& barriers) {
  using Memory = KdaPrepareMemory<Config>;
  const auto load = [&](const CUtensorMap& map, int tile_head, int offset, uint64_t* barrier) {
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      ptx::tensor_load(image + offset + panel * kKdaPanelBytes, map,
                       {panel * kPanelColumns, chunk.token, tile_head, chunk.batch, 0}, barrier);
    }
  };
  const int qk_head = head / params.group;
  if (params.g == nullptr) {
    ptx::mbarrier_arrive_expect_tx(&barriers.g, Memory::kTileBytes);
    load(params.tensor_map_g, head, Memory::kKd, &barriers.g);
  }
  ptx::mbarrier_arrive_expect_tx(&barriers.qk, 2 * Memory::kTileBytes);
  load(params.tensor_map_k, qk_head, Memory::kKr, &barriers.qk);
  load(params.tensor_map_q, qk_head, Memory::kQd, &barriers.qk);
}

// Beta of a token as it stands in memory.
__device__ __forceinline__ uint32_t load_beta_bits(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                                   int row) {
  const int64_t at = chunk.batch * params.beta_batch_stride + (chunk.token + row) * params.beta_token_stride +
                     head * params.beta_head_stride;
  return params.beta_dtype == DType::kFloat32 ? static_cast<const uint32_t*>(params.beta)[at]
                                              : static_cast<const uint16_t*>(params.beta)[at];
}

__device__ __forceinline__ float finish_beta(const KdaPrepareParams& params, uint32_t bits) {
  const float beta = params.beta_dtype == DType::kFloat32    ? __uint_as_float(bits)
                     : params.beta_dtype == DType::kBFloat16 ? ptx::widen_pair<DType::kBFloat16>(bits).x
                                                             : ptx::widen_pair<DType::kFloat16>(bits).x;
  if (!params.beta_logits) return beta;
  const float sigmoid = ptx::rcp_approx(1 + ptx::ex2_approx(-beta * kKdaLog2E));
  return params.allow_neg_eigval ? 2 * sigmoid : sigmoid;
}

// A thread's share of the numbers that no tile holds: all are asked for before one is waited for.
template <class Config>
struct KdaPrepareScalars {
  static constexpr int kBiases = (Config::kKeys + Config::kThreads - 1) / Config::kThreads;
  float a_log, bias[kBiases];
  uint32_t beta;

  __device__ __forceinline__ void load_of_head(const KdaPrepareParams& params, int head) {
    a_log = params.a_log == nullptr ? 0 : params.a_log[head * params.a_log_stride];
#pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      const int key = i * Config::kThreads + threadIdx.x;
      const bool present = params.dt_bias != nullptr && key < params.key_dim;
      bias[i] = present ? params.dt_bias[head * params.dt_bias_stride + key] : 0;
    }
  }
  __device__ __forceinline__ void load_of_tokens(const KdaPrepareParams& params, const KdaChunk& chunk, int head) {
    const int row = threadIdx.x;
    beta = row < chunk.rows ? load_beta_bits(params, chunk, head, row) : 0;
  }

  __device__ __forceinline__ void store(const KdaPrepareParams& params, const KdaChunk& chunk,
                                        const KdaPrepareMemory<Config>& memory) const {
    with_kda_gate<Config>(params, a_log, [&](const auto& gate) {
#pragma unroll
      for (int i = 0; i < kBiases; ++i) {
        const int key = i * Config::kThreads + threadIdx.x;
        if (key < Config::kKeys) ptx::st_shared(memory.bias() + 4 * key, gate.bias(bias[i]));
      }
    });
    const int row = threadIdx.x;
    if (row >= kKdaChunkRows) return;
    ptx::st_shared(memory.beta() + 4 * row, row < chunk.rows ? finish_beta(params, beta) : 0);
  }
};

template <class Config>
__device__ __forceinline__ void fill_rows(uint32_t tile, int first_row, uint32_t pair, int thread_idx) {
  constexpr int kRowChunks = kPanelRowBytes / 16;
  const int chunks = (kKdaChunkRows - first_row) * kRowChunks;
  for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
    for (int i = thread_idx; i < chunks; i += Config::kThreads) {
      ptx::st_shared_v4(tile + panel * kKdaPanelBytes + first_row * kPanelRowBytes + 16 * i,
                        make_uint4(pair, pair, pair, pair));
    }
  }
}

// Rows behind the end of the sequence become zero, and inputs of the gate that make no decay.
template <class Config>
__device__ __forceinline__ void mask_rows(const KdaPrepareParams& params, const KdaPrepareMemory<Config>& memory,
                                          int rows, KdaPrepareBarriers& barriers, int thread_idx) {
  constexpr uint32_t kMinusInfinities = 0xff80ff80u;
  if (params.g == nullptr) {
    ptx::mbarrier_wait(&barriers.g, 0);
    const uint32_t no_decay = params.gate == ops::GateKind::kGiven ? 0 : kMinusInfinities;
    fill_rows<Config>(memory.kd(), rows, no_decay, thread_idx);
  }
  ptx::mbarrier_wait(&barriers.qk, 0);
  fill_rows<Config>(memory.kr(), rows, 0, thread_idx);
  fill_rows<Config>(memory.qd(), rows, 0, thread_idx);
}

}  // namespace warpgrad::cuda::sm90
