#pragma once

#include "backends/cuda/sm90/attention_fwd/instance.h"
#include "backends/cuda/sm90/attention_fwd/kernel.cuh"
#include "backends/cuda/sm90/shared_memory.h"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_attention_fwd(const AttentionFwdKernelParams& params, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(AttentionFwdStorage<Config>);
  const cudaError_t status = allow_shared_memory<attention_fwd_kernel<Config>>(kBytes);
  if (status != cudaSuccess) return status;
  attention_fwd_kernel<Config><<<blocks, Config::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
