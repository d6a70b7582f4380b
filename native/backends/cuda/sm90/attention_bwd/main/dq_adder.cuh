#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/ptx/global_memory.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// Adds a part of dQ of a row block to the accumulator.
template <class Config>
__device__ __forceinline__ void add_dq(const AttentionBwdKernelParams& params,
                                       const float (&accum)[Config::kDqRegisters], int row_block, int part) {
  float* target = params.dq_accum + DqFragment<Config>::offset(row_block, part, threadIdx.x);
#pragma unroll
  for (int i = 0; i < DqFragment<Config>::kSteps; ++i) {
    ptx::red_add_v4(target + i * DqFragment<Config>::kStep, accum[4 * i], accum[4 * i + 1], accum[4 * i + 2],
                    accum[4 * i + 3]);
  }
}

// Where the order of the additions has to be the same in every run, key blocks take turns at each row block: the last
// that sees it adds first, because it is also the first to begin. The warpgroups that add wait for a barrier in shared
// memory before and arrive at another one behind it. Two threads that do nothing else keep the turns in device memory,
// so that neither their reads nor the way of the additions to memory stand between two steps: one waits for the key
// block before, the other lets the next one go on.

// Before the additions of the `step`th row block of this block of threads.
template <class Config>
__device__ __forceinline__ void await_dq_turn(AttentionBwdStorage<Config>& storage,
                                              const AttentionBwdKernelParams& params, int adder, uint32_t step) {
  if (params.dq_turn != nullptr) ptx::mbarrier_wait(&storage.bar_dq_turn[adder], step & 1);
}
// After them.
template <class Config>
__device__ __forceinline__ void end_dq_turn(AttentionBwdStorage<Config>& storage,
                                            const AttentionBwdKernelParams& params, int adder) {
  if (params.dq_turn != nullptr) ptx::mbarrier_arrive_once(&storage.bar_dq_added[adder]);
}

// Calls `take(row_block, rank)` for every step of every tile: `rank` key blocks add to the row block before this one.
template <class Config, class Take>
__device__ __forceinline__ void for_each_dq_turn(AttentionBwdStorage<Config>& storage,
                                                 const AttentionBwdKernelParams& params, Take take) {
  using Slots = Ring<kBwdWorkSlots>;
  for (uint32_t tile = 0;; ++tile) {
    const uint32_t slot = Slots::stage(tile);
    ptx::mbarrier_wait(&storage.bar_work_full[slot], Slots::parity(tile));
    const AttentionBwdWork& work = storage.work[slot];
    if (work.n < 0) break;
    for (int head = 0; head < work.num_heads; ++head) {
      for (int m = work.m_first; m <= work.m_last; ++m) {
        const int last_query = min((m + 1) * Config::kBlockM, work.q_len) - 1;
        const int last_key = min(work.k_len - 1, last_query + work.key_shift_high);
        take(work.row_block + head * params.row_blocks + m, last_key / Config::kBlockN - work.n);
      }
    }
    ptx::mbarrier_arrive(&storage.bar_work_empty[slot]);
  }
}

template <class Config>
__device__ __forceinline__ void take_dq_turns(AttentionBwdStorage<Config>& storage,
                                              const AttentionBwdKernelParams& params) {
  uint32_t num_steps = 0;
  for_each_dq_turn(storage, params, [&](int row_block, int rank) {
    while (ptx::ld_acquire(params.dq_turn + row_block) != rank) {
    }
    for (uint64_t& turn_barrier : storage.bar_dq_turn) {
      if (num_steps > 0) ptx::mbarrier_wait(&turn_barrier, (num_steps - 1) & 1);  // one arrival of this thread a step
      ptx::mbarrier_arrive(&turn_barrier);
    }
    ++num_steps;
  });
}

template <class Config>
__device__ __forceinline__ void pass_dq_turns(AttentionBwdStorage<Config>& storage,
                                              const AttentionBwdKernelParams& params) {
  uint32_t num_steps = 0;
  for (uint64_t& turn_barrier : storage.bar_dq_turn) ptx::mbarrier_arrive(&turn_barrier);
  for_each_dq_turn(storage, params, [&](int row_block, int rank) {
    for (int adder = 0; adder < kDqAdders; ++adder) {
      ptx::mbarrier_wait(&storage.bar_dq_added[adder], num_steps & 1);
      // The step after may add once this one is seen to be done, before it is made known.
      ptx::mbarrier_arrive(&storage.bar_dq_turn[adder]);
    }
    ++num_steps;
    // NOTE: the release orders what the warpgroups have added as well, since the barrier above orders that before it.
    ptx::st_release(params.dq_turn + row_block, rank + 1);
  });
}

}  // namespace warpgrad::cuda::sm90
