#pragma once

#include "backends/cuda/sm90/kda/prepare/instance.h"
#include "backends/cuda/sm90/kda/prepare/kernel.cuh"
#include "backends/cuda/sm90/kda/run_kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_prepare(const KdaPrepareParams& params, int blocks, cudaStream_t stream) {
  return run_kernel<kda_prepare_kernel<Config>>(blocks, Config::kThreads, KdaPrepareMemory<Config>::kBytes, stream,
                                                params);
}

}  // namespace warpgrad::cuda::sm90
