#pragma once

#include "backends/cuda/sm90/kda/recurrence/instance.h"
#include "backends/cuda/sm90/kda/recurrence/kernel.cuh"
#include "backends/cuda/sm90/kda/run_kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_recurrence(const KdaRecurrenceParams& params, int blocks, cudaStream_t stream) {
  return run_kernel<kda_recurrence_kernel<Config>>(blocks, Config::kThreads, sizeof(KdaRecurrenceStorage<Config>),
                                                   stream, params);
}

}  // namespace warpgrad::cuda::sm90
