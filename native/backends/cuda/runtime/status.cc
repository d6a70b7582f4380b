#include "backends/cuda/runtime/status.h"

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/check.h"

namespace warpgrad::cuda {

namespace {

// Whether the context is beyond use after this status: every later call on the device fails.
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable: return true;
    default: return false;
  }
}

// The first fault of each device.
class Faults {
 public:
  void expect_none(int device) {
    if (!any_.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(mutex_);
    const auto fault = by_device_.find(device);
    if (fault == by_device_.end()) return;
    throw Error(
        ErrorCode::kDeviceFailure,
        concat("cuda:", device, " can't be used any more in this process: ", fault->second, "; start a new process"));
  }
  void note(int device, std::string fault) {
    std::lock_guard lock(mutex_);
    by_device_.emplace(device, std::move(fault));
    any_.store(true);
  }

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<int, std::string> by_device_;
};

Faults& faults() {
  static Faults instance;  // the context's, which is the process's
  return instance;
}

}  // namespace

void check(cudaError_t status, const char* what, int device) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (is_sticky(status)) {
    faults().expect_none(device);
    faults().note(device, concat(what, " failed with ", cudaGetErrorName(status)));
  }
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceFailure;
  throw Error(code, concat(what, " gave ", cudaGetErrorName(status), " (", static_cast<int>(status),
                           "): ", cudaGetErrorString(status)));
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  int device = 0;
  cudaGetDevice(&device);
  check(status, what, device);
}

void expect_working(int device) {
  faults().expect_none(device);
}

}  // namespace warpgrad::cuda
