#pragma once

#include <cuda_runtime_api.h>

namespace warpgrad::cuda {

// Throws Error(kOutOfMemory) or Error(kDeviceFailure) that names the call and the status, unless the call succeeded.
// Clears the runtime's last error, so that it can't surface at an unrelated call.
void check(cudaError_t status, const char* call);

// Whether the context is beyond use after this status: every later call on the device fails.
bool is_sticky(cudaError_t status);

}  // namespace warpgrad::cuda
