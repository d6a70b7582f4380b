#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "backends/cuda/runtime/status.h"
#include "core/storage.h"

namespace warpgrad::cuda {

class Arena;

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

// One GPU as one environment uses it: its memory pool and its captures.
class CudaDevice {
 public:
  explicit CudaDevice(int index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int index() const { return index_; }

  // Memory ordered on `stream`. When there is none, takes back what the arenas keep, trims the pool and tries once
  // more; then throws Error(kOutOfMemory) with the sizes.
  void* allocate(size_t bytes, cudaStream_t stream);
  void add_arena(Arena* arena);
  void remove_arena(Arena* arena);
  // Lets another GPU read this one's memory directly, where the hardware can.
  void share_with(int peer_index);

  // Counts the memory of tensors.
  void count(size_t bytes);
  void uncount(size_t bytes);
  MemoryStats stats() const;

  // Between these two, work that touches streams from the outside is put off: it would be captured. It must not throw.
  void begin_capture();
  void end_capture() noexcept;
  void outside_capture(std::function<void()> work);

  // See runtime/status.h. The status of asynchronous work is this device's, whichever is current.
  void expect_working() const { cuda::expect_working(index_); }
  void check_work(cudaError_t status, const char* operation) const { check(status, operation, index_); }

 private:
  bool capturing();

  int index_;
  cudaMemPool_t pool_ = nullptr;
  std::atomic<size_t> live_bytes_{0}, peak_bytes_{0}, allocations_{0};
  std::mutex arenas_mutex_;
  std::vector<Arena*> arenas_;
  std::unordered_set<int> peers_;
  std::mutex capture_mutex_;
  int captures_ = 0;
  std::vector<std::function<void()>> after_capture_;
};

}  // namespace warpgrad::cuda
