#pragma once

// Blocks of a cluster, and each other's shared memory:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#state-spaces-shared

#include <cstdint>
#include <cuda/ptx>

namespace warpgrad::cuda::sm90::ptx {

// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
  ::cuda::ptx::barrier_cluster_arrive();
  ::cuda::ptx::barrier_cluster_wait();
}

// Stores to where `smem` is in another block, and counts the bytes at its `barrier`; both are addresses in this block.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
__device__ __forceinline__ void cluster_store(float* smem, float value, uint64_t* barrier, uint32_t block) {
  ::cuda::ptx::st_async(static_cast<float*>(__cluster_map_shared_rank(smem, block)), value,
                        static_cast<uint64_t*>(__cluster_map_shared_rank(barrier, block)));
}

// Sleeps like mbarrier_sleep, and sees what other blocks have stored.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  while (
      !::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire, ::cuda::ptx::scope_cluster, barrier, parity)) {
  }
}

}  // namespace warpgrad::cuda::sm90::ptx
