#pragma once

#include "backends/cuda/sm90/kda/recurrence/consumer.cuh"
#include "backends/cuda/sm90/kda/recurrence/producer.cuh"
#include "backends/cuda/sm90/kda/recurrence/storer.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
__device__ __forceinline__ void init_barriers(KdaRecurrenceStorage<Config>& storage) {
  for (int i = 0; i < Config::kStages; ++i) {
    ptx::mbarrier_init(&storage.bar_full[i], 1);
    ptx::mbarrier_init(&storage.bar_empty[i], Config::kStageUsers);
    ptx::mbarrier_init(&storage.bar_images_full[i], Config::kConsumerThreads);
    ptx::mbarrier_init(&storage.bar_images_stored[i], 1);
  }
  for (int i = 0; i < Config::kOutSlots; ++i) {
    ptx::mbarrier_init(&storage.bar_out_full[i], Config::kConsumerThreads);
    ptx::mbarrier_init(&storage.bar_out_stored[i], 1);
  }
  ptx::mbarrier_init(&storage.bar_values_empty, Config::kConsumerThreads);
  ptx::fence_mbarrier_init();
}

// Each role goes through the block's works for itself. They become shorter, so every other turn goes backwards: a block
// that had a long one has a short one next.
template <class Config, class Role>
__device__ __forceinline__ void run_works(Role& role, const KdaRecurrenceParams& params) {
  KdaRecurrenceWork work = work_of<Config>(params, blockIdx.x);
  uint32_t place = blockIdx.x, first = 0;
#pragma unroll 1
  while (true) {
    role.run(work);
    if constexpr (!Config::kSeveralWorks) return;
    first += gridDim.x;
    place = gridDim.x - 1 - place;
    if (first + place >= static_cast<uint32_t>(params.num_works)) return;
    work = work_of<Config>(params, static_cast<int>(first + place));
  }
}

// Copies leave out what is above the diagonals, products do not.
template <class Config>
__device__ __forceinline__ void clear_above_diagonals(KdaRecurrenceStorage<Config>& storage) {
#pragma unroll 1
  for (auto& stage : storage.stages) {
    TriangleTile::clear_above(ptx::shared_address(stage.t.bytes), threadIdx.x, Config::kThreads);
    TriangleTile::clear_above(ptx::shared_address(stage.aqk.bytes), threadIdx.x, Config::kThreads);
  }
  ptx::fence_proxy_async();
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    kda_recurrence_kernel(const __grid_constant__ KdaRecurrenceParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  using Storage = KdaRecurrenceStorage<Config>;
  static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);
  Storage& storage = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    init_barriers<Config>(storage);
    ptx::prefetch_tensormap(params.tensor_map_v);
    if constexpr (Config::kWithOut) ptx::prefetch_tensormap(params.out.map);
  }
  clear_above_diagonals(storage);
  __syncthreads();
  // The shuffle tells ptxas that the warpgroup's index is uniform.
  const int warpgroup_idx = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup_idx == Config::kWarpgroups) {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    const int warp_idx = threadIdx.x / kWarpThreads - Config::kConsumerWarps;
    if (warp_idx == 0) {
      KdaRecurrenceProducer<Config> producer(storage, params);
      run_works<Config>(producer, params);
    } else if (warp_idx == 1) {
      if constexpr (Config::kWithOut || Config::kWithImages) {
        KdaRecurrenceStorer<Config> storer(storage, params);
        run_works<Config>(storer, params);
        storer.finish();
      }
    }
  } else {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    KdaRecurrenceConsumer<Config> consumer(storage, params, warpgroup_idx);
    run_works<Config>(consumer, params);
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
