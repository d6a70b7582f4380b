#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/runtime/status.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {

// Throws Error(kDeviceFailure) unless the CUDA call succeeded; `what` names the call.
inline void check_cuda(cudaError_t status, const char* operation, const char* what) {
  if (status != cudaSuccess) check(status, concat(operation, ": ", what).c_str());
}

}  // namespace warpgrad::cuda::sm90
