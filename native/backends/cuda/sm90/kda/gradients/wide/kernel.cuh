#pragma once

#include "backends/cuda/sm90/kda/gradients/kernel.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/consumer.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/producer.cuh"
#include "backends/cuda/sm90/ptx/cluster.cuh"

namespace warpgrad::cuda::sm90 {

// The grid is [128-key part][tile at a time]; the parts of a tile are a cluster.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kda_wide_gradients_kernel(const __grid_constant__ KdaGradientsParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = KdaGradientsStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) init_barriers(storage);
  clear_absent_panels(storage, params);
  clear_q_k_sums(storage);
  ptx::cluster_sync();
  run_roles<Config, KdaWideGradientsConsumer<Config>, KdaWideGradientsProducer<Config>>(storage, params);
#endif
}

}  // namespace warpgrad::cuda::sm90
