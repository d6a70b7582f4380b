#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace warpgrad::cuda {

class CudaDevice;

// Device memory in the order of one stream. Blocks that are freed are kept and handed out again: what runs later on the
// stream may have them at once, without a call of the driver, which takes one to two microseconds. What exceeds the
// limits goes back to the device's pool.
//
// Any thread may free. While the stream is captured, every block is kept: a call of the driver would become part of the
// graph.
class Arena {
 public:
  // `for_any_stream`: blocks can be used at once on every stream, for which allocations that reach the driver wait.
  Arena(std::shared_ptr<CudaDevice> device, cudaStream_t stream, bool for_any_stream);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(size_t bytes);  // throws Error(kOutOfMemory)
  void free(void* data, size_t bytes) noexcept;
  void trim() noexcept;  // gives back what is kept
  void keep_all(bool keep) noexcept;

 private:
  void give_back_above(size_t bytes) noexcept;  // blocks of more than these

  std::shared_ptr<CudaDevice> device_;
  cudaStream_t stream_;
  const bool for_any_stream_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> kept_;  // by size
  size_t kept_bytes_ = 0;
  bool keeps_all_ = false;
};

}  // namespace warpgrad::cuda
