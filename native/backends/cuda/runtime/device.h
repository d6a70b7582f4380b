#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "core/storage.h"

namespace warpgrad::cuda {

// Makes a device current on this thread and restores the previous one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool switched_ = false;
};

// One GPU as one environment uses it: its memory pool, its properties, and whether it still works.
class CudaDevice {
 public:
  explicit CudaDevice(int index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const { return index_; }
  int num_multiprocessors() const { return num_multiprocessors_; }

  // Memory ordered on `stream`. Trims the pool and tries once more when there is none; then throws Error(kOutOfMemory)
  // with the sizes.
  void* allocate(size_t bytes, cudaStream_t stream);
  void free(void* data, size_t bytes, cudaStream_t stream) noexcept;
  MemoryStats stats() const;

  // Throws Error(kDeviceFailure) once a fault has made the device unusable for this process.
  void expect_working() const;
  // Checks the status of asynchronous work and remembers a fault. Names the operation.
  void check_work(cudaError_t status, const char* operation);

 private:
  int index_;
  int num_multiprocessors_ = 0;
  cudaMemPool_t pool_ = nullptr;
  std::atomic<size_t> live_bytes_{0}, peak_bytes_{0}, allocations_{0};
  mutable std::mutex fault_mutex_;
  std::string fault_;
};

}  // namespace warpgrad::cuda
