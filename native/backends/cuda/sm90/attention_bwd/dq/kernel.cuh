#pragma once

#include "backends/cuda/sm90/attention_bwd/dq/consumer.cuh"
#include "backends/cuda/sm90/attention_bwd/dq/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void init_barriers(AttentionBwdDqStorage<Config>& storage) {
  constexpr int kConsumerWarps = kDqWarpgroups * kWarpgroupThreads / kWarpThreads;
  ptx::mbarrier_init_each(storage.bar_q_full, 1);
  ptx::mbarrier_init_each(storage.bar_d_out_full, 1);
  ptx::mbarrier_init_each(storage.bar_k_full, 1);
  ptx::mbarrier_init_each(storage.bar_k_empty, kConsumerWarps);
  ptx::mbarrier_init_each(storage.bar_v_full, 1);
  ptx::mbarrier_init_each(storage.bar_v_empty, kConsumerWarps);
  ptx::fence_mbarrier_init();
}

// A thread that loads Q and dO, and keeps the rings of K and V full.
template <class Config>
class AttentionBwdDqProducer {
 public:
  using Storage = AttentionBwdDqStorage<Config>;

  __device__ __forceinline__ AttentionBwdDqProducer(Storage& storage, const AttentionBwdKernelParams& problem)
      : storage_(storage), problem_(problem), work_(storage.work) {}

  // In the order in which the consumers ask.
  __device__ __forceinline__ void run() {
    load_rows(storage_.smem_q, storage_.bar_q_full, problem_.tensor_map_q);
    const int n_first = work_.n_first, n_last = work_.n_last;
    for (int n = n_first; n <= n_last; ++n) {
      load_columns(storage_.smem_k, storage_.bar_k_full, storage_.bar_k_empty, problem_.tensor_map_k, n);
      if (n == n_first) load_rows(storage_.smem_d_out, storage_.bar_d_out_full, problem_.tensor_map_d_out);
      load_columns(storage_.smem_v, storage_.bar_v_full, storage_.bar_v_empty, problem_.tensor_map_v, n);
      ++num_steps_;
    }
  }

 private:
  template <class Tile>
  __device__ __forceinline__ void load_rows(SmemTile<Tile> (&tiles)[kDqWarpgroups], uint64_t* full,
                                            const CUtensorMap& map) {
    for (int i = 0; i < kDqWarpgroups; ++i) {
      const int row = work_.q_row_shift + work_.q_first + i * Config::kBlockM;
      load(tiles[i], map, row, work_.q_head, work_.q_batch, &full[i]);
    }
  }

  template <class Tile, int kStages>
  __device__ __forceinline__ void load_columns(SmemTile<Tile> (&tiles)[kStages], uint64_t* full, uint64_t* empty,
                                               const CUtensorMap& map, int n) {
    const uint32_t stage = Ring<kStages>::stage(num_steps_);
    ptx::mbarrier_wait(&empty[stage], Ring<kStages>::parity(num_steps_) ^ 1);
    load(tiles[stage], map, work_.k_row_shift + n * Config::kBlockN, work_.kv_head, work_.k_batch, &full[stage]);
  }

  template <class Tile>
  __device__ __forceinline__ void load(SmemTile<Tile>& tile, const CUtensorMap& map, int row, int head, int batch,
                                       uint64_t* full) {
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      ptx::tensor_load(tile.bytes + panel * Tile::kPanelBytes, map,
                       {panel * kPanelColumns, row, head, batch, problem_.wrap}, full);
    }
  }

  Storage& storage_;
  const AttentionBwdKernelParams& problem_;
  const AttentionBwdDqWork& work_;
  uint32_t num_steps_ = 0;  // loaded
};

// A block of threads two row blocks.
template <class Config>
__global__ void __launch_bounds__(Config::kDqThreads, 1)
    attention_bwd_dq_kernel(const __grid_constant__ AttentionBwdDqParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = AttentionBwdDqStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    init_barriers<Config>(storage);
    plan_dq_tile<Config>(params, blockIdx.x, storage.work);
  }
  __syncthreads();
  // The shuffle tells ptxas that the warpgroup's index is uniform.
  const int warpgroup_idx = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup_idx == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (threadIdx.x == 0) AttentionBwdDqProducer<Config>(storage, params.problem).run();
  } else {
    ptx::setmaxnreg_inc<Config::kDqConsumerRegisters>();
    AttentionBwdDqConsumer<Config>(storage, params, warpgroup_idx - 1).run();
  }
  cudaGridDependencySynchronize();  // whatever waits for this kernel waits for the main one as well
#endif
}

}  // namespace warpgrad::cuda::sm90
