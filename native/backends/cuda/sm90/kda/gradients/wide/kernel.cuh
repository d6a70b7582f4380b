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

// Panels that images do not have stay zero.
template <class Config>
__device__ __forceinline__ void clear_absent_wide_panels(KdaGradientsStorage<Config>& storage,
                                                         const KdaRecordLayout& record) {
  if (record.value_panels == 1) {
    for (auto* tile : {&storage.smem_dy, &storage.smem_u, &storage.smem_d_out}) {
      clear_panel<Config>(tile->bytes + kKdaPanelBytes);
    }
  }
  for (int value_panel = 0; value_panel < 2; ++value_panel) {
    for (int key_panel = value_panel < record.value_panels ? record.key_panels : 0; key_panel < 2; ++key_panel) {
      clear_panel<Config>(storage.smem_state[value_panel].bytes + key_panel * kKdaPanelBytes);
      clear_panel<Config>(storage.smem_d_state[value_panel].bytes + key_panel * kKdaPanelBytes);
    }
  }
  ptx::fence_proxy_async();
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
  clear_absent_wide_panels(storage, params.record);
  ptx::cluster_sync();
  // The shuffle tells ptxas that the warp's index is uniform.
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarpThreads, 0);
  if (warp < Config::kConsumerWarps) {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    KdaWideGradientsConsumer<Config>(storage, params, warp / 4, warp % 4).run();
    return;
  }
  ptx::setmaxnreg_dec<Config::kHelperRegisters>();
  switch (warp - Config::kConsumerWarps) {
    case 0:
      if (threadIdx.x % kWarpThreads == 0) KdaWideGradientsProducer<Config>(storage, params).run();
      break;
    case 1: KdaGradientsStorer<Config>(storage, params).run(); break;
    case 2: load_gate_scalars(storage, params); break;
    case 3: add_up_keys(storage, params); break;
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
