#pragma once

#include "backends/cuda/sm90/kda/recurrence/instance.h"
#include "backends/cuda/sm90/kda/recurrence/kernel.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_recurrence(const KdaRecurrenceParams& params, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KdaRecurrenceStorage<Config>);
  const auto kernel = kda_recurrence_kernel<Config>;
  // Once a context would do; that takes longer to remember than to repeat.
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  kernel<<<blocks, Config::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
