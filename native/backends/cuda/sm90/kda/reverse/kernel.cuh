#pragma once

#include "backends/cuda/sm90/kda/reverse/consumer.cuh"
#include "backends/cuda/sm90/kda/reverse/copies.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kda_reverse_kernel(const __grid_constant__ KdaReverseParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = KdaReverseStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  constexpr int kConsumerWarps = kWarpgroupThreads / kWarpThreads;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(&storage.bar_full[i], 1);
      ptx::mbarrier_init(&storage.bar_empty[i], kWarpgroupThreads);
      ptx::mbarrier_init(&storage.bar_out[i], kConsumerWarps);
      ptx::mbarrier_init(&storage.bar_sent[i], 1);
    }
    for (uint64_t* full : {&storage.bar_t_full, &storage.bar_aqk_full}) ptx::mbarrier_init(full, 1);
    for (uint64_t* empty : {&storage.bar_t_empty, &storage.bar_aqk_empty}) ptx::mbarrier_init(empty, kWarpgroupThreads);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const KdaReverseBlock block(params);
  const int warp_idx = __shfl_sync(~0u, threadIdx.x / kWarpThreads, 0);
  if (warp_idx < kConsumerWarps) {
    KdaReverseConsumer<Config>(storage, params, block).run();
  } else if (warp_idx == kConsumerWarps) {
    if (threadIdx.x % kWarpThreads == 0) run_kda_reverse_producer<Config>(storage, params, block);
  } else {
    run_kda_reverse_storer<Config>(storage, params, block);
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
