#pragma once

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace warpgrad::cuda::sm90 {

// Throws Error(kDeviceFailure) unless the CUDA call succeeded; `what` names the call.
inline void check_cuda(cudaError_t status, const char* operation, const char* what) {
  WG_CHECK(status == cudaSuccess, ErrorCode::kDeviceFailure, operation, ": ", what, ": ", cudaGetErrorName(status),
           " (", cudaGetErrorString(status), ")");
}

}  // namespace warpgrad::cuda::sm90
