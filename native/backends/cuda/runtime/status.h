#pragma once

#include <cuda_runtime_api.h>

namespace warpgrad::cuda {

// The one place that judges the status of a CUDA call: throws Error(kOutOfMemory) or Error(kDeviceFailure) that names
// `what` and the status, unless the call succeeded. Clears the runtime's last error, so that it can't surface at an
// unrelated call.
//
// A fault of a kernel ends the device's context, which all environments of the process share. The first report of it is
// kept, and every later failure on that device says so instead of its own status.
void check(cudaError_t status, const char* what, int device);
void check(cudaError_t status, const char* what);  // of the current device

// Throws Error(kDeviceFailure) once a fault has made the device unusable for this process.
void expect_working(int device);

}  // namespace warpgrad::cuda
