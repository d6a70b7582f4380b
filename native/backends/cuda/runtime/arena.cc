#include "backends/cuda/runtime/arena.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

namespace {

constexpr size_t kLargeBytes = size_t{64} << 20;
constexpr size_t kMaxKeptBytes = size_t{512} << 20;

// An eighth of the next power of two at least, so that few sizes share the blocks and at most an eighth is wasted. Of
// large blocks nothing is.
size_t block_bytes(size_t bytes) {
  if (bytes > kLargeBytes) return bytes;
  const size_t step = std::max<size_t>(std::bit_ceil(bytes) / 8, 512);
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;  // an empty tensor has an address too
}

}  // namespace

Arena::Arena(std::shared_ptr<CudaDevice> device, cudaStream_t stream, bool for_any_stream)
    : device_(std::move(device)), stream_(stream), for_any_stream_(for_any_stream) {
  device_->add_arena(this);
}

Arena::~Arena() {
  device_->remove_arena(this);
  give_back_above(0);
}

void* Arena::allocate(size_t bytes) {
  const size_t size = block_bytes(bytes);
  {
    std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(size); found != kept_.end() && !found->second.empty()) {
      void* data = found->second.back();
      found->second.pop_back();
      kept_bytes_ -= size;
      return data;
    }
  }
  void* data = device_->allocate(size, stream_);
  if (for_any_stream_) check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return data;
}

void Arena::free(void* data, size_t bytes) noexcept {
  const size_t size = block_bytes(bytes);
  std::lock_guard lock(mutex_);
  const auto full = [&] { return !keeps_all_ && kept_bytes_ + size > kMaxKeptBytes; };
  if (size > kLargeBytes && full()) {
    cudaFreeAsync(data, stream_);  // fails only after a fault, or while the process ends
    return;
  }
  // Sizes that nobody asks for any more must not fill the place of others. Large blocks make room first.
  if (full()) give_back_above(kLargeBytes);
  if (full()) give_back_above(0);
  kept_[size].push_back(data);
  kept_bytes_ += size;
}

void Arena::trim() noexcept {
  std::lock_guard lock(mutex_);
  if (!keeps_all_) give_back_above(0);
}

void Arena::keep_all(bool keep) noexcept {
  std::lock_guard lock(mutex_);
  keeps_all_ = keep;
  if (!keep && kept_bytes_ > kMaxKeptBytes) give_back_above(0);
}

void Arena::give_back_above(size_t bytes) noexcept {
  std::erase_if(kept_, [&](const auto& entry) {
    const auto& [size, blocks] = entry;
    if (size <= bytes) return false;
    for (void* data : blocks) cudaFreeAsync(data, stream_);
    kept_bytes_ -= size * blocks.size();
    return true;
  });
}

}  // namespace warpgrad::cuda
