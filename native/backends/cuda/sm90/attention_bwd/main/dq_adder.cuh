#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/ptx/global_memory.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// Adds a warpgroup's part of dQ to the accumulator. Where the order of the additions has to be the same in every run, the
// key blocks add in turn. The last one that sees the row block is the first to add: it is also the first to begin. A turn
// is best ended a step later, when the additions have long arrived and the fence has nothing to wait for.
template <class Config>
class DqAdder {
 public:
  __device__ __forceinline__ DqAdder(const AttentionBwdKernelParams& params, const volatile AttentionBwdWork& work,
                                     int part)
      : params_(params), work_(work), part_(part) {}

  __device__ __forceinline__ void add(const float (&accum)[Config::kDqRegisters], int row_block) const {
    if (in_turn()) await_turn(row_block);
    float* target = params_.dq_accum + DqFragment<Config>::offset(row_block, part_, threadIdx.x);
#pragma unroll
    for (int i = 0; i < DqFragment<Config>::kSteps; ++i) {
      ptx::red_add_v4(target + i * DqFragment<Config>::kStep, accum[4 * i], accum[4 * i + 1], accum[4 * i + 2],
                      accum[4 * i + 3]);
    }
  }

  __device__ __forceinline__ bool in_turn() const { return params_.dq_turn != nullptr; }
  __device__ __forceinline__ void end_turn(int row_block) const {
    __threadfence();
    ptx::bar_sync(kBwdBarrierWarpgroup + part_, kWarpgroupThreads);
    if (threadIdx.x % kWarpgroupThreads == 0) ptx::st_release(turn(row_block), rank(row_block) + 1);
  }
  // Whether the head's steps before the one at `row_block` have added, but not ended their turn: the first is two before.
  __device__ __forceinline__ bool has_pending_turn(int row_block) const {
    return (row_block - work_.row_block) % params_.row_blocks >= work_.m_first + 2;
  }

 private:
  __device__ __forceinline__ int32_t* turn(int row_block) const {
    return params_.dq_turn + Config::kDqParts * row_block + part_;
  }
  __device__ __forceinline__ int rank(int row_block) const {
    const int m = (row_block - work_.row_block) % params_.row_blocks;
    const int last_query = min((m + 1) * Config::kBlockM, work_.q_len) - 1;
    return min(work_.k_len - 1, last_query + work_.key_shift_high) / Config::kBlockN - work_.n;
  }
  __device__ __forceinline__ void await_turn(int row_block) const {
    if (threadIdx.x % kWarpgroupThreads == 0) {
      const int own = rank(row_block);
      while (ptx::ld_acquire(turn(row_block)) != own) {
      }
    }
    ptx::bar_sync(kBwdBarrierWarpgroup + part_, kWarpgroupThreads);
  }

  const AttentionBwdKernelParams& params_;
  const volatile AttentionBwdWork& work_;
  const int part_;
};

}  // namespace warpgrad::cuda::sm90
