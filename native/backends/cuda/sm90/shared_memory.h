#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace warpgrad::cuda::sm90 {

// Allows blocks of a kernel `bytes` of dynamic shared memory, always as many. Asks the runtime once a device: that
// takes half a microsecond.
template <auto kKernel>
cudaError_t allow_shared_memory(int bytes) {
  if (bytes == 0) return cudaSuccess;
  static std::atomic<uint64_t> allowed = 0;  // a bit a device
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (allowed.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

}  // namespace warpgrad::cuda::sm90
