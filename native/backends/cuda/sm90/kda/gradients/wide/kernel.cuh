#pragma once

#include "backends/cuda/sm90/kda/gradients/kernel.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/consumer.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/producer.cuh"
#include "backends/cuda/sm90/ptx/cluster.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void init_wide_barriers(KdaGradientsStorage<Config>& storage) {
  for (int input : {kKdaK, kKdaQ}) {
    ptx::mbarrier_init(&storage.bar_full[input], 1);
    ptx::mbarrier_init(&storage.bar_empty[input], kWarpThreads);
  }
  ptx::mbarrier_init(&storage.bar_values_full, 1);
  ptx::mbarrier_init(&storage.bar_values_empty, Config::kConsumerThreads);
  ptx::mbarrier_init(&storage.bar_scores_full, 1);
  ptx::mbarrier_init(&storage.bar_scores_empty, Config::kConsumerThreads + kWarpThreads);
  for (uint64_t& barrier : storage.bar_other_sums_full) ptx::mbarrier_init(&barrier, 1);
  init_sum_barriers(storage);
}

// The grid is [128-key part][tile at a time]; the parts of a tile are a cluster.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kda_wide_gradients_kernel(const __grid_constant__ KdaGradientsParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = KdaGradientsStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) init_wide_barriers(storage);
  clear_absent_panels(storage, params);
  clear_q_k_sums(storage);
  ptx::cluster_sync();
  run_roles<Config, KdaWideGradientsConsumer<Config>, KdaWideGradientsProducer<Config>>(storage, params);
#endif
}

}  // namespace warpgrad::cuda::sm90
