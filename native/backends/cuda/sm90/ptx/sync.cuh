#pragma once

#include <cstdint>

namespace warpgrad::cuda::sm90::ptx {

// threadIdx.x, read anew: what is derived from it is not kept in registers through loops that don't use it.
__device__ __forceinline__ int read_thread_idx() {
  int thread_idx;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread_idx));
  return thread_idx;
}

// The same of blockIdx.x.
__device__ __forceinline__ int read_block_idx() {
  int block_idx;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block_idx));
  return block_idx;
}

// Unlike __syncwarp(), also a line that ptxas moves no instruction across.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar-warp-sync
__device__ __forceinline__ void bar_warp_sync() {
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

// Named barriers:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace warpgrad::cuda::sm90::ptx
