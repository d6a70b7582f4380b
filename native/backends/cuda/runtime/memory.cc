#include "backends/cuda/runtime/memory.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

CudaStorage::CudaStorage(void* data, size_t bytes, std::shared_ptr<StreamState> stream)
    : Storage(Device{DeviceType::kCuda, stream->device().index()}, data, bytes), stream_(std::move(stream)) {}

void CudaStorage::used_on(const std::shared_ptr<StreamState>& stream) {
  if (stream == stream_) return;
  if (std::find(users_.begin(), users_.end(), stream) == users_.end()) users_.push_back(stream);
}

void CudaStorage::after_users(std::function<void()> give_up) noexcept {
  if (users_.empty()) return give_up();
  const auto ordered = [users = std::move(users_), stream = stream_, give_up = std::move(give_up)] {
    try {
      for (const auto& user : users) user->order_before(stream->handle());
    } catch (const std::exception&) {
      // Only after a fault or while the process ends; the memory goes with the context then.
    }
    give_up();
  };
  stream_->device().outside_capture(ordered);
}

ArenaStorage::ArenaStorage(size_t bytes, std::shared_ptr<Arena> arena, std::shared_ptr<StreamState> stream)
    : CudaStorage(arena->allocate(bytes), bytes, std::move(stream)), arena_(std::move(arena)) {}

ArenaStorage::~ArenaStorage() {
  after_users([arena = arena_, data = data(), bytes = bytes()] { arena->free(data, bytes); });
}

TensorStorage::TensorStorage(size_t bytes, std::shared_ptr<Arena> arena, std::shared_ptr<StreamState> stream)
    : ArenaStorage(bytes, std::move(arena), std::move(stream)) {
  stream_->device().count(bytes);
}

TensorStorage::~TensorStorage() {
  stream_->device().uncount(bytes());
}

AdoptedCudaStorage::AdoptedCudaStorage(void* data, size_t bytes, const CudaStream& stream, std::shared_ptr<void> owner)
    : CudaStorage(data, bytes, stream.state()), completion_(stream.completion()), owner_(std::move(owner)) {}

AdoptedCudaStorage::~AdoptedCudaStorage() {
  if (!owner_) return;
  after_users([stream = stream_, completion = completion_, owner = owner_] {
    try {
      completion->push({"", std::make_shared<CudaEvent>(stream), [owner] {}, nullptr});
    } catch (const std::exception&) {
      cudaStreamSynchronize(stream->handle());  // the queue is closed already
    }
  });
}

Staging::Staging() {
  check(cudaMallocHost(reinterpret_cast<void**>(&blocks_[0]), 2 * kBlockBytes), "cudaMallocHost");
  blocks_[1] = blocks_[0] + kBlockBytes;
  for (cudaStream_t& own : streams_) {
    check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
}

Staging::~Staging() {
  cudaFreeHost(blocks_[0]);
  for (cudaStream_t own : streams_) cudaStreamDestroy(own);
}

void Staging::send(char* device, const char* host, size_t bytes, cudaStream_t stream) {
  std::memcpy(blocks_[0], host, bytes);
  check(cudaMemcpyAsync(device, blocks_[0], bytes, cudaMemcpyHostToDevice, stream), "the copy to the device");
}

void Staging::fetch(const char* device, size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(blocks_[0], device, bytes, cudaMemcpyDeviceToHost, stream), "the copy to the host");
}

void Staging::unload(char* host, size_t bytes) const {
  std::memcpy(host, blocks_[0], bytes);
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
