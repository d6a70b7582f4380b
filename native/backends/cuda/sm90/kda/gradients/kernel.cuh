#pragma once

#include "backends/cuda/sm90/kda/gradients/consumer.cuh"
#include "backends/cuda/sm90/kda/gradients/helpers.cuh"
#include "backends/cuda/sm90/kda/gradients/producer.cuh"

namespace warpgrad::cuda::sm90 {

// Each warp adds to its sums of q k for 16 of the tokens only.
template <class Config>
__device__ __forceinline__ void clear_q_k_sums(KdaGradientsStorage<Config>& storage) {
  auto& sums = storage.key_sums[kKdaSumQK];
  for (int i = threadIdx.x; i < Config::kConsumerWarps * 64; i += Config::kThreads) sums[i / 64][i % 64] = 0;
}

template <class Config>
__device__ __forceinline__ void init_barriers(KdaGradientsStorage<Config>& storage) {
  constexpr int kThreads = Config::kConsumerThreads;
  ptx::mbarrier_init(&storage.bar_values_full, 1);
  ptx::mbarrier_init(&storage.bar_values_empty, kThreads);
  ptx::mbarrier_init(&storage.bar_qk_full, 1);
  ptx::mbarrier_init(&storage.bar_qk_empty, kWarpThreads);
  for (int i = 0; i < Config::kGateSlots; ++i) {
    ptx::mbarrier_init(&storage.bar_g_full[i], 1);
    ptx::mbarrier_init(&storage.bar_g_empty[i], kWarpThreads);
  }
  for (int i = 0; i < kKdaScalarSlots; ++i) {
    ptx::mbarrier_init(&storage.bar_token_scalars_full[i], 1);
    ptx::mbarrier_init(&storage.bar_token_scalars_empty[i], kThreads + kWarpThreads);
    ptx::mbarrier_init(&storage.bar_gate_scalars_full[i], kWarpThreads);
    ptx::mbarrier_init(&storage.bar_gate_scalars_empty[i], kThreads);
  }
  ptx::mbarrier_init(&storage.bar_dg_full, kThreads);
  ptx::mbarrier_init(&storage.bar_dqk_full, kThreads);
  ptx::mbarrier_init(&storage.bar_key_sums_full, kThreads);
  ptx::mbarrier_init(&storage.bar_token_sums_full, kWarpThreads);
  if constexpr (Config::kWide) {
    ptx::mbarrier_init(&storage.bar_scores_full, 1);
    ptx::mbarrier_init(&storage.bar_scores_empty, kThreads + kWarpThreads);
    for (uint64_t& barrier : storage.bar_other_sums_full) ptx::mbarrier_init(&barrier, 1);
  }
  ptx::fence_mbarrier_init();
}

template <class Config>
__device__ __forceinline__ void clear_panel(uint8_t* panel) {
  for (int i = threadIdx.x; i < kKdaPanelBytes / 16; i += Config::kThreads) {
    reinterpret_cast<uint4*>(panel)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Panels of values and keys that do not exist stay zero.
template <class Config>
__device__ __forceinline__ void clear_absent_panels(KdaGradientsStorage<Config>& storage,
                                                    const KdaGradientsParams& params) {
  for (int value_panel = 0; value_panel < 2; ++value_panel) {
    const bool present = value_panel < params.value_panels;
    if (!present) {
      clear_panel<Config>(storage.smem_e.bytes + value_panel * kKdaPanelBytes);
      uint8_t* const d_out_dv = storage.smem_d_out_dv.bytes + value_panel * KdaOutputTile::kPanelBytes;
      clear_panel<Config>(d_out_dv);
      clear_panel<Config>(d_out_dv + kKdaPanelBytes);
    }
    for (int key_panel = present ? params.record.key_panels : 0; key_panel < 2; ++key_panel) {
      clear_panel<Config>(storage.smem_state[value_panel].bytes + key_panel * kKdaPanelBytes);
      clear_panel<Config>(storage.smem_d_state[value_panel].bytes + key_panel * kKdaPanelBytes);
    }
  }
  ptx::fence_proxy_async();
}

// Hands out the roles, when everything has been set up.
template <class Config, class Consumer, class Producer>
__device__ __forceinline__ void run_roles(KdaGradientsStorage<Config>& storage, const KdaGradientsParams& params) {
  // The shuffle tells ptxas that the warp's index is uniform.
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarpThreads, 0);
  if (warp < Config::kConsumerWarps) {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    Consumer(storage, params, warp / 4, warp % 4).run();
    return;
  }
  ptx::setmaxnreg_dec<Config::kHelperRegisters>();
  switch (warp - Config::kConsumerWarps) {
    case 0:
      if (threadIdx.x % kWarpThreads == 0) Producer(storage, params).run();
      break;
    case 1: KdaGradientsStorer<Config>(storage, params).run(); break;
    case 2: load_gate_scalars(storage, params); break;
    case 3: add_up_keys(storage, params); break;
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kda_gradients_kernel(const __grid_constant__ KdaGradientsParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = KdaGradientsStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) init_barriers(storage);
  clear_absent_panels(storage, params);
  clear_q_k_sums(storage);
  __syncthreads();
  run_roles<Config, KdaGradientsConsumer<Config>, KdaGradientsProducer<Config>>(storage, params);
#endif
}

}  // namespace warpgrad::cuda::sm90
