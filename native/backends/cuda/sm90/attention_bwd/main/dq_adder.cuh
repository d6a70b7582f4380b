#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/ptx/global_memory.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// Adds one of a warpgroup's parts of dQ to the accumulator, `step` counts the warpgroup's row blocks. Where the order
// of the additions has to be the same in every run, the warpgroup's DqTurnKeeper says when.
template <class Config>
__device__ __forceinline__ void add_dq(AttentionBwdStorage<Config>& storage, const AttentionBwdKernelParams& params,
                                       const float (&accum)[Config::kDqRegisters], int row_block, int part, int keeper,
                                       uint32_t step) {
  const bool in_turn = params.dq_turn != nullptr;
  if (in_turn && part == first_dq_part<Config>(keeper)) ptx::mbarrier_wait(&storage.bar_dq_turn[keeper], step & 1);
  float* target = params.dq_accum + DqFragment<Config>::offset(row_block, part, threadIdx.x);
#pragma unroll
  for (int i = 0; i < DqFragment<Config>::kSteps; ++i) {
    ptx::red_add_v4(target + i * DqFragment<Config>::kStep, accum[4 * i], accum[4 * i + 1], accum[4 * i + 2],
                    accum[4 * i + 3]);
  }
  if (in_turn && part + 1 == first_dq_part<Config>(keeper + 1))
    ptx::mbarrier_arrive_once(&storage.bar_dq_added[keeper]);
}

// A thread that takes turns with those of the other key blocks on behalf of one warpgroup, so that the warpgroup waits
// neither for a flag in device memory nor for its own additions to arrive there. The last key block that sees a row
// block is the first to add: it is also the first to begin.
template <class Config>
class DqTurnKeeper {
 public:
  using Params = AttentionBwdKernelParams;
  using Storage = AttentionBwdStorage<Config>;

  __device__ __forceinline__ DqTurnKeeper(Storage& storage, const Params& params, int keeper)
      : storage_(storage), params_(params), keeper_(keeper) {}

  __device__ __forceinline__ void run() {
    for (uint32_t tile = 0;; ++tile) {
      const uint32_t slot = tile % kBwdWorkSlots;
      ptx::mbarrier_wait(&storage_.bar_work_full[slot], tile / kBwdWorkSlots & 1);
      const AttentionBwdWork& work = storage_.work[slot];
      if (work.n < 0) break;
      for (int head = 0; head < params_.group; ++head) {
        for (int m = work.m_first; m <= work.m_last; ++m) {
          const int row_block = work.row_block + head * params_.row_blocks + m;
          take_turn(params_.dq_turn + kDqKeepers * row_block + keeper_, rank(work, m));
        }
      }
      ptx::mbarrier_arrive(&storage_.bar_work_empty[slot]);
    }
  }

 private:
  // How many key blocks add before this one.
  __device__ __forceinline__ int rank(const AttentionBwdWork& work, int m) const {
    const int last_query = min((m + 1) * Config::kBlockM, work.q_len) - 1;
    return min(work.k_len - 1, last_query + work.key_shift_high) / Config::kBlockN - work.n;
  }

  __device__ __forceinline__ void take_turn(int32_t* turn, int rank) {
    while (ptx::ld_acquire(turn) != rank) {
    }
    ptx::mbarrier_arrive(&storage_.bar_dq_turn[keeper_]);
    ptx::mbarrier_wait(&storage_.bar_dq_added[keeper_], num_steps_ & 1);
    ++num_steps_;
    __threadfence();  // orders what the warpgroup has added, as the barrier above tells, before the flag
    ptx::st_release(turn, rank + 1);
  }

  Storage& storage_;
  const Params& params_;
  const int keeper_;
  uint32_t num_steps_ = 0;
};

}  // namespace warpgrad::cuda::sm90
