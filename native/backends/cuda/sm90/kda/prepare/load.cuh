#pragma once

// What comes into shared memory before the work begins.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/gate.cuh"
#include "backends/cuda/sm90/kda/prepare/memory.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"

namespace warpgrad::cuda::sm90 {

struct KdaPrepareBarriers {
  uint64_t g, qk, v;  // each completes once
};

// One thread: the tiles of a chunk. Rows of the next sequence may come too.
template <class Config>
__device__ __forceinline__ void load_tiles(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                           uint8_t* image, KdaPrepareBarriers& barriers) {
  constexpr KdaRecordLayout kLayout = KdaPrepareMemory<Config>::kLayout;
  const auto load = [&](const CUtensorMap& map, int tile_head, int panels, int offset, uint64_t* barrier) {
    for (int panel = 0; panel < panels; ++panel) {
      ptx::tensor_load(image + offset + panel * kKdaPanelBytes, map,
                       {panel * kPanelColumns, chunk.token, tile_head, chunk.batch, 0}, barrier);
    }
  };
  constexpr int kKeyPanels = Config::kKeyPanels;
  const int qk_head = head / params.group;
  if (params.g == nullptr) {
    ptx::mbarrier_arrive_expect_tx(&barriers.g, kKeyPanels * kKdaPanelBytes);
    load(params.tensor_map_g, head, kKeyPanels, kLayout.w(), &barriers.g);
  }
  ptx::mbarrier_arrive_expect_tx(&barriers.qk, 2 * kKeyPanels * kKdaPanelBytes);
  load(params.tensor_map_k, qk_head, kKeyPanels, kLayout.kr(), &barriers.qk);
  load(params.tensor_map_q, qk_head, kKeyPanels, kLayout.qd(), &barriers.qk);
  if (params.with_u0) {
    ptx::mbarrier_arrive_expect_tx(&barriers.v, params.record.value_panels * kKdaPanelBytes);
    load(params.tensor_map_v, head, params.record.value_panels, kLayout.u0(), &barriers.v);
  }
}

__device__ __forceinline__ float load_beta(const KdaPrepareParams& params, const KdaChunk& chunk, int head, int row) {
  if (row >= chunk.rows) return 0;
  const int64_t at = chunk.batch * params.beta_batch_stride + (chunk.token + row) * params.beta_token_stride +
                     head * params.beta_head_stride;
  float beta;
  if (params.beta_dtype == DType::kFloat32) {
    beta = static_cast<const float*>(params.beta)[at];
  } else {
    const uint32_t bits = static_cast<const uint16_t*>(params.beta)[at];
    beta = params.beta_dtype == DType::kBFloat16 ? ptx::widen_pair<DType::kBFloat16>(bits).x
                                                 : ptx::widen_pair<DType::kFloat16>(bits).x;
  }
  if (!params.beta_logits) return beta;
  const float sigmoid = ptx::rcp_approx(1 + ptx::ex2_approx(-beta * kKdaLog2E));
  return params.allow_neg_eigval ? 2 * sigmoid : sigmoid;
}

template <class Config>
__device__ __forceinline__ void load_bias_and_beta(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                                   const KdaPrepareMemory<Config>& memory, int thread_idx) {
  with_kda_gate(params, head, [&](const auto& gate) {
    for (int key = thread_idx; key < Config::kKeys; key += Config::kThreads) {
      const bool present = params.dt_bias != nullptr && key < params.key_dim;
      const float bias = present ? params.dt_bias[head * params.dt_bias_stride + key] : 0;
      ptx::st_shared(memory.bias() + 4 * key, gate.bias(bias));
    }
  });
  if (thread_idx < kKdaChunkRows) {
    ptx::st_shared(memory.beta() + 4 * thread_idx, load_beta(params, chunk, head, thread_idx));
  }
}

template <class Config>
__device__ __forceinline__ void fill_rows(uint32_t tile, int panels, int first_row, uint32_t pair, int thread_idx) {
  constexpr int kRowChunks = kPanelRowBytes / 16;
  const int chunks = (kKdaChunkRows - first_row) * kRowChunks;
  for (int panel = 0; panel < panels; ++panel) {
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
    fill_rows<Config>(memory.w(), Config::kKeyPanels, rows, no_decay, thread_idx);
  }
  ptx::mbarrier_wait(&barriers.qk, 0);
  fill_rows<Config>(memory.kr(), Config::kKeyPanels, rows, 0, thread_idx);
  fill_rows<Config>(memory.qd(), Config::kKeyPanels, rows, 0, thread_idx);
  if (params.with_u0) {
    ptx::mbarrier_wait(&barriers.v, 0);
    fill_rows<Config>(memory.u0(), params.record.value_panels, rows, 0, thread_idx);
    ptx::fence_proxy_async();
  }
}

}  // namespace warpgrad::cuda::sm90
