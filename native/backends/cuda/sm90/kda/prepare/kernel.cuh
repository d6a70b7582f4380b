#pragma once

#include "backends/cuda/sm90/kda/prepare/decay_tables.cuh"
#include "backends/cuda/sm90/kda/prepare/inverse.cuh"
#include "backends/cuda/sm90/kda/prepare/load.cuh"

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
      sum_decays<Config>(memory, warp, gate, KdaGateTile<Config>{memory.kd(), warp}, L);
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

// Aqk, the diagonal blocks of T and what its others need.
template <class Config>
__device__ __forceinline__ void multiply_blocks(uint32_t block, const KdaPrepareMemory<Config>& memory,
                                                const KdaRowScales<Config>& scales, const bool (&deep)[2],
                                                KdaDiagonalBlocks& blocks, KdaQueryFragments<Config>& queries,
                                                KdaAqkFragments& aqk, KdaOffDiagonalFragments& y) {
  const auto warp = KdaPrepareWarp<Config>::here(block);
  finish_diagonal_block(memory, warp, scales, deep, blocks, aqk.diagonal);
  __syncwarp();
  invert_diagonal_block(memory, warp);
  __syncwarp();
  make_off_diagonal(memory, warp, scales, queries, aqk, y);
  begin_inverse(memory, warp, y);
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerMultiprocessor)
    kda_prepare_kernel(const __grid_constant__ KdaPrepareParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Memory = KdaPrepareMemory<Config>;
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t image[];
  const Memory memory{ptx::shared_address(image)};
  auto& barriers = *reinterpret_cast<KdaPrepareBarriers*>(image + Memory::kBarriers);
  // From the last chunk to the first, of which the recurrence then finds records in the L2 cache.
  const uint32_t record_idx = gridDim.x - 1 - blockIdx.x;
  const uint32_t chunk_idx = record_idx / params.value_heads, head = record_idx % params.value_heads;
  const KdaChunk chunk = params.chunks[chunk_idx];
  KdaPrepareScalars<Config> scalars;
  scalars.load_of_head(params, head);
  if (threadIdx.x == Config::kThreads - 1) {  // of a warp that has no betas to load
    ptx::mbarrier_init(&barriers.g, 1);
    ptx::mbarrier_init(&barriers.qk, 1);
    ptx::fence_mbarrier_init();
    load_tiles<Config>(params, chunk, head, image, barriers);
  }
  scalars.load_of_tokens(params, chunk, head);
  scalars.store(params, chunk, memory);
  store_triangle(memory, threadIdx.x);
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
  decay_rows(params, chunk, head, scalars.a_log, block, memory, barriers, scales, deep, blocks, queries);
  constexpr KdaRecordLayout kRecord = Memory::kRecord;
  // One thread: a part of the record leaves.
  const auto store = [&](int record_offset, int image_offset, int bytes) {
    uint8_t* const record = params.records + static_cast<int64_t>(record_idx) * kRecord.bytes();
    ptx::bulk_store(record + record_offset, image + image_offset, bytes);
    ptx::bulk_commit_group();
  };
  if (threadIdx.x == 0) {
    store(kRecord.kr(), Memory::kKr, Memory::kTileBytes);
    store(kRecord.qd(), Memory::kQd, Memory::kTileBytes);
  }
  KdaAqkFragments aqk;
  KdaOffDiagonalFragments y;
  multiply_blocks(block, memory, scales, deep, blocks, queries, aqk, y);
  if (threadIdx.x == 0) ptx::bulk_wait_group_read<0>();  // Kr and Qd have left
  __syncthreads();

  continue_inverse(memory, KdaPrepareWarp<Config>::here(block), scales, y);
  store_aqk(memory, KdaPrepareWarp<Config>::here(block), aqk);
  store_decayed_keys(memory, KdaPrepareWarp<Config>::here(block), scales, queries);
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    store(kRecord.kd(), Memory::kKd, Memory::kTileBytes);
    store(kRecord.aqk(), Memory::kAqk, kKdaTriangleBytes);
  }
  finish_inverse(memory, KdaPrepareWarp<Config>::here(block), scales, y);
  if constexpr (!Config::kQkL2Norm) {
    __syncthreads();
    finish_norms(memory, threadIdx.x);
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  store(kRecord.t(), Memory::kT, kKdaTriangleBytes);
  store(kRecord.decay(), Memory::kTail, Memory::kTailBytes);
  ptx::bulk_wait_group_read<0>();
#endif
}

}  // namespace warpgrad::cuda::sm90
