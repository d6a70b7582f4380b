#pragma once

#include "backends/cuda/sm90/kda/prepare/instance.h"
#include "backends/cuda/sm90/kda/prepare/kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_prepare(const KdaPrepareParams& params, int blocks, cudaStream_t stream) {
  const int bytes = KdaPrepareMemory<Config>::kBytes;
  const auto kernel = kda_prepare_kernel<Config>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  kernel<<<blocks, Config::kThreads, bytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
