#pragma once

#include "backends/cuda/sm90/kda/prepare/decay_tables.cuh"
#include "backends/cuda/sm90/kda/prepare/load.cuh"
#include "backends/cuda/sm90/kda/prepare/products.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void gate_decays(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                            float a_log, uint32_t block, const KdaPrepareMemory<Config>& memory,
                                            KdaPrepareBarriers& barriers, float (&L)[2 * Config::kSteps][4]) {
  with_kda_gate<Config>(params, a_log, [&]<class Gate>(const Gate& gate) {
    const auto warp = KdaPrepareWarp<Config>::here(block);
    if (!Config::kShallow && params.g != nullptr) {
      sum_decays<Config>(memory, warp, gate, KdaGateRows<Config>(params, chunk, head, warp, kKdaNoDecay<Gate>), L);
    } else {
      ptx::mbarrier_wait(&barriers.g, 0);
      sum_decays<Config>(memory, warp, gate, KdaGateTile<Config>{memory.w(), warp}, L);
    }
  });
}

// Which rows are deep, if any, and their diagonal blocks. Before a barrier: the room of g, which these use, is then for
// the copies of all warps.
template <class Config>
__device__ __forceinline__ bool multiply_deep_rows(const KdaPrepareMemory<Config>& memory, uint32_t block,
                                                   const KdaRowScales<Config>& scales,
                                                   const float (&L)[2 * Config::kSteps][4], bool (&deep)[2],
                                                   KdaDeepRows<Config>& deep_rows) {
  if constexpr (Config::kShallow) return false;
  ptx::bar_warp_sync();
  const auto warp = KdaPrepareWarp<Config>::here(block);
  if (!has_deep_rows(memory, warp)) return false;
  find_deep_rows<Config>(L, deep);
  deep_rows.multiply(memory, warp, scales, L);
  return true;
}

// Everything up to Kr and Qd, in shared memory by then.
template <class Config>
__device__ __forceinline__ void decay_rows(const KdaPrepareParams& params, const KdaChunk& chunk, int head, float a_log,
                                           uint32_t block, const KdaPrepareMemory<Config>& memory,
                                           KdaPrepareBarriers& barriers, KdaRowScales<Config>& scales, bool (&deep)[2],
                                           KdaDiagonalBlocks& blocks, KdaQueryFragments<Config>& queries) {
  float L[2 * Config::kSteps][4];
  gate_decays(params, chunk, head, a_log, block, memory, barriers, L);
  ptx::mbarrier_wait(&barriers.qk, 0);
  scales = scale_rows(memory, KdaPrepareWarp<Config>::here(block), params.scale);
  KdaDeepRows<Config> deep_rows;
  const bool any_deep = multiply_deep_rows(memory, block, scales, L, deep, deep_rows);
  __syncthreads();
  make_decay_tables(memory, threadIdx.x);
  __syncthreads();
  make_scaled_copies(memory, KdaPrepareWarp<Config>::here(block), scales, L, any_deep, blocks, queries);
  deep_rows.replace(deep, blocks);
  ptx::fence_proxy_async();
  __syncthreads();
}

// Aqk, kept in registers, T and the keys for W.
template <class Config>
__device__ __forceinline__ void invert(uint32_t block, const KdaPrepareMemory<Config>& memory,
                                       const KdaRowScales<Config>& scales, const bool (&deep)[2],
                                       KdaDiagonalBlocks& blocks, KdaQueryFragments<Config>& queries,
                                       KdaAqkFragments& aqk) {
  const auto warp = KdaPrepareWarp<Config>::here(block);
  float row_beta[2];
  KdaOffDiagonalFragments y;
  load_row_betas(memory, warp, scales, row_beta);
  invert_diagonal_block(memory, warp, scales, deep, row_beta, blocks, aqk.diagonal);
  make_off_diagonal(memory, warp, scales, row_beta, queries, aqk, y);
  __syncthreads();
  store_decayed_keys(memory, warp, queries);
  ptx::fence_proxy_async();
  make_inverse(memory, warp, y);
  __syncthreads();
}

// W, U0 and T, and all that is left to be written into shared memory.
template <class Config>
__device__ __forceinline__ void make_products(const KdaPrepareParams& params, uint32_t block,
                                              const KdaPrepareMemory<Config>& memory, KdaPrepareBarriers& barriers,
                                              const KdaRowScales<Config>& scales, const KdaAqkFragments& aqk) {
  const auto warp = KdaPrepareWarp<Config>::here(block);
  uint32_t t[4][4], w[Config::kSteps][4], u0[4][4];
  KdaTwoTerms terms;
  load_t_rows(memory, warp, t);
  multiply_by_beta(memory, warp, t);
  multiply_w(memory, scales, t, w);
  if (params.with_u0) {
    split(memory, warp, t, terms);
    ptx::mbarrier_wait(&barriers.v, 0);
    multiply_u0<Config>(memory.u0(), scales, terms, u0);
  }
  if (params.t_images != nullptr && threadIdx.x == 0) ptx::bulk_wait_group_read<0>();  // Kr has left
  __syncthreads();
  if (params.t_images != nullptr) store_t(memory, warp, scales, memory.kr());
  store_aqk(memory, warp, aqk);
  store_rows(warp, memory.w(), w);
  if (params.with_u0) {
    store_rows(warp, memory.u0(), u0);
    for (int panel = 1; panel < params.record.value_panels; ++panel) {
      const uint32_t v_panel = memory.u0() + panel * kKdaPanelBytes;
      multiply_u0<Config>(v_panel, scales, terms, u0);
      __syncthreads();
      store_rows(warp, v_panel, u0);
    }
  }
  if constexpr (!Config::kQkL2Norm) {
    __syncthreads();
    finish_norms(memory, threadIdx.x);
  }
  ptx::fence_proxy_async();
  __syncthreads();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerMultiprocessor)
    kda_prepare_kernel(const __grid_constant__ KdaPrepareParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t image[];
  const uint32_t image_address = ptx::shared_address(image);
  const KdaPrepareMemory<Config> memory{image_address, image_address + params.record.bytes()};
  auto& barriers = *reinterpret_cast<KdaPrepareBarriers*>(image + params.record.bytes() + memory.kBarrierOffset);
  const uint32_t chunk_idx = blockIdx.x / params.value_heads, head = blockIdx.x % params.value_heads;
  const KdaChunk chunk = params.chunks[chunk_idx];
  KdaPrepareScalars<Config> scalars;
  scalars.load_of_head(params, head);
  if (threadIdx.x == Config::kThreads - 1) {  // of a warp that has no betas to load
    ptx::mbarrier_init(&barriers.g, 1);
    ptx::mbarrier_init(&barriers.qk, 1);
    ptx::mbarrier_init(&barriers.v, 1);
    ptx::fence_mbarrier_init();
    load_tiles<Config>(params, chunk, head, image, barriers);
  }
  scalars.load_of_tokens(params, chunk, head);
  scalars.store(params, chunk, memory);
  __syncthreads();
  if (chunk.rows < kKdaChunkRows) {
    mask_rows(params, memory, chunk.rows, barriers, threadIdx.x);
    __syncthreads();
  }

  // Blocks of rows differ in their work: rotated, so that the same one is not always on the same scheduler.
  const uint32_t block = (__shfl_sync(~0u, threadIdx.x / kWarpThreads, 0) + chunk_idx + head) % 4;
  KdaRowScales<Config> scales;
  bool deep[2] = {false, false};
  KdaDiagonalBlocks blocks;
  KdaQueryFragments<Config> queries;
  KdaAqkFragments aqk;
  decay_rows(params, chunk, head, scalars.a_log, block, memory, barriers, scales, deep, blocks, queries);
  constexpr KdaRecordLayout kLayout = KdaPrepareMemory<Config>::kLayout;
  const auto store = [&](int begin, int end) {
    uint8_t* const record = params.records + static_cast<int64_t>(blockIdx.x) * params.record.bytes();
    ptx::bulk_store(record + begin, image + begin, end - begin);
  };
  if (threadIdx.x == 0) {
    store(kLayout.kr(), kLayout.aqk());  // and Qd
    ptx::bulk_commit_group();
  }
  invert(block, memory, scales, deep, blocks, queries, aqk);
  make_products(params, block, memory, barriers, scales, aqk);
  if (threadIdx.x != 0) return;
  store(kLayout.w(), kLayout.kr());
  if (params.with_u0) {
    store(kLayout.aqk(), params.record.bytes());
  } else {
    store(kLayout.aqk(), kLayout.u0());
    store(params.record.decay(), params.record.bytes());
  }
  if (params.t_images != nullptr) {
    uint8_t* const t_image = params.t_images + static_cast<int64_t>(blockIdx.x) * kKdaPanelBytes;
    ptx::bulk_store(t_image, image + kLayout.kr(), kKdaPanelBytes);
  }
  ptx::bulk_commit_group();
  ptx::bulk_wait_group_read<0>();
#endif
}

}  // namespace warpgrad::cuda::sm90
