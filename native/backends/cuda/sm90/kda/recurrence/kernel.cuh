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
  ptx::fence_mbarrier_init();
}

// The blocks of a (sequence, value head) are neighbours, so that they share its records in the L2 cache.
template <class Config>
__device__ __forceinline__ KdaRecurrenceWork work_of(const KdaRecurrenceParams& params, int block) {
  const int splits = params.work_panels / Config::kValueParts;
  const int pair = block / splits;
  const int place = pair / params.value_heads;
  const KdaSequence& sequence = params.sequences[place];
  return {sequence.first_chunk, sequence.num_chunks, place, pair % params.value_heads,
          block % splits * Config::kValueParts};
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
  const KdaRecurrenceWork work = work_of<Config>(params, blockIdx.x);
  // The shuffle tells ptxas that the warpgroup's index is uniform.
  const int warpgroup_idx = __shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup_idx == Config::kWarpgroups) {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    const int warp_idx = threadIdx.x / kWarpThreads - Config::kConsumerWarps;
    if (warp_idx == 0) {
      if (threadIdx.x % kWarpThreads == 0) KdaRecurrenceProducer<Config>(storage, params, work).run();
    } else if (warp_idx == 1) {
      if constexpr (Config::kWithOut || Config::kWithImages) KdaRecurrenceStorer<Config>(storage, params, work).run();
    }
  } else {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    KdaRecurrenceConsumer<Config>(storage, params, work, warpgroup_idx).run();
  }
#endif
}

}  // namespace warpgrad::cuda::sm90
