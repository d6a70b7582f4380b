#include "backends/cuda/runtime/memory.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

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

Staging::Staging() {
  for (int i = 0; i < 2; ++i) {
    check(cudaMallocHost(reinterpret_cast<void**>(&blocks_[i]), kBlockBytes), "cudaMallocHost");
    check(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
}

Staging::~Staging() {
  for (int i = 0; i < 2; ++i) {
    cudaFreeHost(blocks_[i]);
    cudaStreamDestroy(streams_[i]);
  }
}

void Staging::begin_after(const StreamState& stream) {
  for (cudaStream_t own : streams_) stream.order_before(own);
}

void Staging::end_before(cudaStream_t stream) {
  for (cudaStream_t own : streams_) order(own, stream);
}

void Staging::upload(char* device, const char* host, size_t bytes) {
  for (size_t offset = 0, turn = 0; offset < bytes; offset += kBlockBytes, turn ^= 1) {
    const size_t size = std::min(kBlockBytes, bytes - offset);
    check(cudaStreamSynchronize(streams_[turn]), "the copy to the device");  // the block's previous content has left
    std::memcpy(blocks_[turn], host + offset, size);
    check(cudaMemcpyAsync(device + offset, blocks_[turn], size, cudaMemcpyHostToDevice, streams_[turn]),
          "the copy to the device");
  }
}

void Staging::wait() {
  for (cudaStream_t own : streams_) check(cudaStreamSynchronize(own), "the copy to the device");
}

void Staging::download(char* host, const char* device, size_t bytes) {
  const size_t num_blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  const auto size_of = [&](size_t block) { return std::min(kBlockBytes, bytes - block * kBlockBytes); };
  for (size_t block = 0; block <= num_blocks; ++block) {
    if (block < num_blocks) {
      check(cudaMemcpyAsync(blocks_[block % 2], device + block * kBlockBytes, size_of(block), cudaMemcpyDeviceToHost,
                            streams_[block % 2]),
            "the copy to the host");
    }
    if (block == 0) continue;
    const size_t previous = block - 1;
    check(cudaStreamSynchronize(streams_[previous % 2]), "the copy to the host");
    std::memcpy(host + previous * kBlockBytes, blocks_[previous % 2], size_of(previous));
  }
}

std::shared_ptr<Staging> StagingPool::take() {
  std::unique_ptr<Staging> staging;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      staging = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!staging) staging = std::make_unique<Staging>();
  return {staging.release(), [pool = shared_from_this()](Staging* used) {
            std::lock_guard lock(pool->mutex_);
            pool->free_.emplace_back(used);
          }};
}

}  // namespace warpgrad::cuda
