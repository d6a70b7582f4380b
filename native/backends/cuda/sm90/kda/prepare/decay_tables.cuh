#pragma once

#include "backends/cuda/sm90/kda/prepare/memory.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"

namespace warpgrad::cuda::sm90 {

// Decays from block to block of rows, a thread a key, in place of their log2; exp(G_C) goes to the record.
template <class Config>
__device__ __forceinline__ void make_decay_tables(const KdaPrepareMemory<Config>& memory, int thread_idx) {
  for (int key = thread_idx; key < Config::kKeys; key += Config::kThreads) {
    const int at = 4 * key;
    const float sum_0 = ptx::ld_shared(memory.block_sum(0) + at), sum_1 = ptx::ld_shared(memory.block_sum(1) + at);
    const float sum_2 = ptx::ld_shared(memory.block_sum(2) + at), sum_3 = ptx::ld_shared(memory.block_sum(3) + at);
    const float all = ptx::ex2_approx(sum_0 + sum_1 + sum_2 + sum_3);
    ptx::st_shared(memory.to_start(0) + at, 1);
    ptx::st_shared(memory.to_start(1) + at, ptx::ex2_approx(sum_0));
    ptx::st_shared(memory.to_start(2) + at, ptx::ex2_approx(sum_0 + sum_1));
    ptx::st_shared(memory.to_start(3) + at, ptx::ex2_approx(sum_0 + sum_1 + sum_2));
    ptx::st_shared(memory.from_start(0) + at, all * Config::kOverSource);
    ptx::st_shared(memory.from_start(1) + at, ptx::ex2_approx(sum_1 + sum_2 + sum_3 - Config::kSourceLog2));
    ptx::st_shared(memory.from_start(2) + at, ptx::ex2_approx(sum_2 + sum_3 - Config::kSourceLog2));
    ptx::st_shared(memory.from_start(3) + at, ptx::ex2_approx(sum_3 - Config::kSourceLog2));
    ptx::st_shared(memory.from_start(4) + at, Config::kOverSource);
    ptx::st_shared(memory.block_1() + at, ptx::ex2_approx(sum_1));
    ptx::st_shared(memory.block_2() + at, ptx::ex2_approx(sum_2));
    ptx::st_shared(memory.decay() + at, all);
  }
}

}  // namespace warpgrad::cuda::sm90
