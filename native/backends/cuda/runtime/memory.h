#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/runtime/stream.h"
#include "core/storage.h"

namespace warpgrad::cuda {

// Device memory, allocated and freed in the order of its stream. Streams that use it besides its own are remembered,
// and the free is ordered after their work.
class CudaStorage : public Storage {
 public:
  CudaStorage(void* data, size_t bytes, std::shared_ptr<StreamState> stream);
  ~CudaStorage() override;

  void used_on(const std::shared_ptr<StreamState>& stream);

 private:
  std::shared_ptr<StreamState> stream_;
  std::vector<std::shared_ptr<StreamState>> other_streams_;
};

// Page-locked host blocks for copies that run beside the host, kept for reuse.
class PinnedPool {
 public:
  static constexpr size_t kBlockBytes = size_t{8} << 20;

  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  void* take();
  void give_back(void* block) noexcept;

 private:
  std::mutex mutex_;
  std::vector<void*> free_blocks_;
};

// A block that goes back to its pool at the end of the scope.
class PinnedBlock {
 public:
  explicit PinnedBlock(std::shared_ptr<PinnedPool> pool) : pool_(std::move(pool)), data_(pool_->take()) {}
  ~PinnedBlock() { pool_->give_back(data_); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  std::shared_ptr<PinnedPool> pool_;
  void* data_;
};

}  // namespace warpgrad::cuda
