#pragma once

// The bulk tensor copy engine:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

namespace warpgrad::cuda::sm90::ptx {

template <int kRank>
__device__ __forceinline__ void tensor_load(void* smem, const CUtensorMap& map, const int32_t (&coords)[kRank],
                                            uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, smem, &map, coords, barrier);
}

// To the L2 cache only.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap& map, const int32_t (&coords)[5]) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map), "r"(coords[0]),
               "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4])
               : "memory");
}

template <int kRank>
__device__ __forceinline__ void tensor_store(const CUtensorMap& map, const int32_t (&coords)[kRank], const void* smem) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &map, coords, smem);
}

// Contiguous bytes, a multiple of 16 at multiples of 16.
__device__ __forceinline__ void bulk_load(void* smem, const void* gmem, uint32_t bytes, uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, smem, gmem, bytes, barrier);
}

__device__ __forceinline__ void bulk_store(void* gmem, const void* smem, uint32_t bytes) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_global, ::cuda::ptx::space_shared, gmem, smem, bytes);
}

__device__ __forceinline__ void bulk_commit_group() {
  ::cuda::ptx::cp_async_bulk_commit_group();
}

// Waits until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group_read() {
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<kPending>());
}

template <int kPending>
__device__ __forceinline__ void bulk_wait_group() {
  ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<kPending>());
}

// Orders this thread's stores to shared memory before later reads by wgmma or the copy engine.
__device__ __forceinline__ void fence_proxy_async() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace warpgrad::cuda::sm90::ptx
