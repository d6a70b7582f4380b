#pragma once

// Barriers in shared memory:
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier

#include <cstdint>
#include <cuda/ptx>

namespace warpgrad::cuda::sm90::ptx {

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  ::cuda::ptx::mbarrier_init(barrier, arrivals);
}
template <int kCount>
__device__ __forceinline__ void mbarrier_init_each(uint64_t (&barriers)[kCount], uint32_t arrivals) {
  for (uint64_t& barrier : barriers) mbarrier_init(&barrier, arrivals);
}

// Makes the initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

// NOTE: scope_cta. A release at cluster scope costs a MEMBAR.ALL.GPU each time.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  ::cuda::ptx::mbarrier_arrive(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared, barrier);
}

// One arrival for a converged warp, after what all of its threads have done, by whichever of them.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
__device__ __forceinline__ void mbarrier_arrive_once(uint64_t* barrier) {
  __syncwarp();
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                         barrier, bytes);
}

// Whether the phase of this parity has completed.
__device__ __forceinline__ bool mbarrier_test_wait(uint64_t* barrier, uint32_t parity) {
  return ::cuda::ptx::mbarrier_test_wait_parity(barrier, parity);
}

// Waits until the phase of this parity has completed. WARPGRAD_BOUNDED_WAITS=<polls> makes a debugging build that goes
// on with wrong data instead of hanging.
// NOTE: no trap and no printf here: ptxas then gives every role the registers of the kernel's entry, and spills.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
#ifdef WARPGRAD_BOUNDED_WAITS
  for (int i = 0; i < WARPGRAD_BOUNDED_WAITS && !::cuda::ptx::mbarrier_try_wait_parity(barrier, parity); ++i) {
  }
#else
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
#endif
}

// The same for long waits of helper warps: sleeps until then rather than asking again and again, which takes issue
// slots.
__device__ __forceinline__ void mbarrier_sleep(uint64_t* barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10'000'000;
#ifdef WARPGRAD_BOUNDED_WAITS
  mbarrier_wait(barrier, parity);
#else
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity, kNanoseconds)) {
  }
#endif
}

}  // namespace warpgrad::cuda::sm90::ptx
