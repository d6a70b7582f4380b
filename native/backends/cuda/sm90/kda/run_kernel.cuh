#pragma once

#include "backends/cuda/sm90/shared_memory.h"

namespace warpgrad::cuda::sm90 {

// Enqueues a kernel whose blocks have `bytes` of dynamic shared memory.
template <auto kKernel, class Params>
cudaError_t run_kernel(dim3 blocks, int threads, int bytes, cudaStream_t stream, const Params& params) {
  const cudaError_t status = allow_shared_memory<kKernel>(bytes);
  if (status != cudaSuccess) return status;
  kKernel<<<blocks, threads, bytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
