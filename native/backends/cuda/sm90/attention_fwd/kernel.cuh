#pragma once

#include "backends/cuda/sm90/attention_fwd/consumer.cuh"
#include "backends/cuda/sm90/attention_fwd/producer.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void init_barriers(AttentionFwdStorage<Config>& storage) {
  constexpr int kWarps = Config::kConsumerWarps;
  ptx::mbarrier_init_each(storage.bar_q_full, 1);
  ptx::mbarrier_init_each(storage.bar_q_empty, kWarpgroupThreads / kWarpThreads);
  ptx::mbarrier_init_each(storage.bar_k_full, 1);
  ptx::mbarrier_init_each(storage.bar_k_empty, kWarps);
  ptx::mbarrier_init_each(storage.bar_v_full, 1);
  ptx::mbarrier_init_each(storage.bar_v_empty, kWarps);
  ptx::mbarrier_init_each(storage.bar_work_full, 1);
  ptx::mbarrier_init_each(storage.bar_work_empty, kWarps + 1);  // and the producer
  ptx::mbarrier_init(&storage.bar_claim, 1);
  ptx::fence_mbarrier_init();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_fwd_kernel(const __grid_constant__ AttentionFwdKernelParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = AttentionFwdStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    init_barriers<Config>(storage);
    ptx::prefetch_tensormap(params.tensor_map_q);
    ptx::prefetch_tensormap(params.tensor_map_k);
    ptx::prefetch_tensormap(params.tensor_map_v);
    if constexpr (Config::kTile.out_through_smem) ptx::prefetch_tensormap(params.tensor_map_out);
  }
  __syncthreads();
  // The shuffle tells ptxas that the warpgroup's index is uniform.
  const int warpgroup_idx = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup_idx == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      AttentionFwdProducer<Config>(storage, params).run();
    } else if (threadIdx.x / kWarpThreads == 1) {
      AttentionFwdPlanner<Config>(storage, params).run();
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    AttentionFwdConsumer<Config>(storage, params, warpgroup_idx - 1).run();
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
