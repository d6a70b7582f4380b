#pragma once

#include "backends/cuda/sm90/kda/gradients/instance.h"
#include "backends/cuda/sm90/kda/gradients/kernel.cuh"
#include "backends/cuda/sm90/kda/run_kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_gradients(const KdaGradientsParams& params, int blocks, cudaStream_t stream) {
  return run_kernel<kda_gradients_kernel<Config>>(dim3(1, blocks), Config::kThreads,
                                                  sizeof(KdaGradientsStorage<Config>), stream, params);
}

}  // namespace warpgrad::cuda::sm90
