#pragma once

#include "backends/cuda/sm90/kda/gradients/instance.h"
#include "backends/cuda/sm90/kda/gradients/kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_gradients(const KdaGradientsParams& params, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KdaGradientsStorage<Config>);
  const auto kernel = kda_gradients_kernel<Config>;
  // Once a context would do; that takes longer to remember than to repeat.
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  kernel<<<dim3(1, blocks), Config::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
