#include "backends/cuda/runtime/memory.h"

#include <algorithm>
#include <exception>

#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

CudaStorage::CudaStorage(void* data, size_t bytes, std::shared_ptr<StreamState> stream)
    : Storage(Device{DeviceType::kCuda, stream->device().index()}, data, bytes), stream_(std::move(stream)) {}

CudaStorage::~CudaStorage() {
  try {
    const DeviceGuard guard(stream_->device().index());
    for (const auto& stream : other_streams_) stream->order_before(stream_->handle());
  } catch (const std::exception&) {
    // Only after a fault or while the process ends; the memory goes with the context then.
  }
  stream_->device().free(data(), bytes(), stream_->handle());
}

void CudaStorage::used_on(const std::shared_ptr<StreamState>& stream) {
  if (stream == stream_) return;
  if (std::find(other_streams_.begin(), other_streams_.end(), stream) == other_streams_.end()) {
    other_streams_.push_back(stream);
  }
}

PinnedPool::~PinnedPool() {
  for (void* block : free_blocks_) cudaFreeHost(block);
}

void* PinnedPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_blocks_.empty()) {
      void* block = free_blocks_.back();
      free_blocks_.pop_back();
      return block;
    }
  }
  void* block = nullptr;
  check(cudaMallocHost(&block, kBlockBytes), "cudaMallocHost");
  return block;
}

void PinnedPool::give_back(void* block) noexcept {
  constexpr size_t kMaxFreeBlocks = 8;
  {
    std::lock_guard lock(mutex_);
    if (free_blocks_.size() < kMaxFreeBlocks) {
      free_blocks_.reserve(kMaxFreeBlocks);
      free_blocks_.push_back(block);
      return;
    }
  }
  cudaFreeHost(block);
}

}  // namespace warpgrad::cuda
