#pragma once

#include "backends/cuda/sm90/attention_bwd/main/by_keys.cuh"
#include "backends/cuda/sm90/attention_bwd/main/by_role.cuh"
#include "backends/cuda/sm90/attention_bwd/main/dq_adder.cuh"
#include "backends/cuda/sm90/attention_bwd/main/producer.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void init_barriers(AttentionBwdStorage<Config>& storage, bool in_turn) {
  // Arrivals are counted in warps: of all consumers, of those that read Q or dO, that write dS, that read it.
  constexpr int kWarpgroupWarps = kWarpgroupThreads / kWarpThreads;
  constexpr int kConsumers = Config::kConsumerWarpgroups * kWarpgroupWarps;
  constexpr int kTwo = 2 * kWarpgroupWarps;
  // Here each thread arrives that has read lse and delta: racecheck knows no order of those reads before the arrival of
  // another thread, and it costs nothing.
  constexpr int kRowsReaders = kWarpgroupThreads + (Config::kByKeys ? kWarpgroupThreads : kWarpgroupWarps);
  ptx::mbarrier_init(&storage.bar_kv_full, 1);
  ptx::mbarrier_init(&storage.bar_kv_empty, kConsumers);
  ptx::mbarrier_init_each(storage.bar_q_full, 1);
  ptx::mbarrier_init_each(storage.bar_q_empty, kRowsReaders);
  ptx::mbarrier_init_each(storage.bar_d_out_full, 1);
  ptx::mbarrier_init_each(storage.bar_d_out_empty, kRowsReaders);
  ptx::mbarrier_init_each(storage.bar_ds_full, Config::kByKeys ? kTwo : kWarpgroupWarps);
  ptx::mbarrier_init_each(storage.bar_ds_empty, Config::kByKeys ? kTwo : kWarpgroupWarps);
  ptx::mbarrier_init_each(storage.bar_p_full, kWarpgroupWarps);
  ptx::mbarrier_init_each(storage.bar_p_empty, kWarpgroupWarps);
  ptx::mbarrier_init_each(storage.bar_work_full, 1);
  ptx::mbarrier_init_each(storage.bar_work_empty, kConsumers + 1 + (in_turn ? 2 : 0));  // and the producer
  ptx::mbarrier_init_each(storage.bar_dq_turn, 2);
  ptx::mbarrier_init_each(storage.bar_dq_added, kWarpgroupWarps);
  ptx::mbarrier_init(&storage.bar_claim, 1);
  ptx::fence_mbarrier_init();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_kernel(const __grid_constant__ AttentionBwdKernelParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = AttentionBwdStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    init_barriers<Config>(storage, params.dq_turn != nullptr);
    ptx::prefetch_tensormap(params.tensor_map_q);
    ptx::prefetch_tensormap(params.tensor_map_d_out);
    ptx::prefetch_tensormap(params.tensor_map_k);
    ptx::prefetch_tensormap(params.tensor_map_v);
  }
  __syncthreads();
  cudaGridDependencySynchronize();  // for the preprocess
  if constexpr (!Config::kByKeys)
    cudaTriggerProgrammaticLaunchCompletion();  // the kernel of dQ needs nothing of this one
  // The shuffle tells ptxas that the warpgroup's index is uniform.
  const int warpgroup_idx = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup_idx == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      AttentionBwdProducer<Config>(storage, params).run();
    } else if (threadIdx.x / kWarpThreads == 1) {
      AttentionBwdPlanner<Config>(storage, params).run();
    } else if (Config::kByKeys && threadIdx.x % kWarpThreads == 0 && params.dq_turn != nullptr) {
      if (threadIdx.x / kWarpThreads == 2) {
        take_dq_turns(storage, params);
      } else {
        pass_dq_turns(storage, params);
      }
    }
  } else if constexpr (Config::kByKeys) {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    AttentionBwdByKeys<Config>(storage, params, warpgroup_idx - 1).run();
  } else if (warpgroup_idx == 1) {
    ptx::setmaxnreg_inc<Config::kScoresRegisters>();
    AttentionBwdScores<Config>(storage, params).run();
  } else if (warpgroup_idx == 2) {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    AttentionBwdGradient<Config, true>(storage, params).run();
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    AttentionBwdGradient<Config, false>(storage, params).run();
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
