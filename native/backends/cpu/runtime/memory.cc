#include "backends/cpu/runtime/memory.h"

#include <utility>

#include "backends/cpu/runtime/page_cache.h"

namespace warpgrad::cpu {

namespace {

class CpuStorage : public Storage {
 public:
  CpuStorage(void* data, size_t bytes, std::shared_ptr<MemoryCounter> counter)
      : Storage(Device{DeviceType::kCpu, 0}, data, bytes), counter_(std::move(counter)) {
    counter_->add(bytes);
  }
  ~CpuStorage() override {
    free_pages(data(), bytes());
    counter_->subtract(bytes());
  }

 private:
  std::shared_ptr<MemoryCounter> counter_;
};

}  // namespace

void MemoryCounter::add(size_t bytes) {
  const size_t live = live_bytes_.fetch_add(bytes) + bytes;
  size_t peak = peak_bytes_.load();
  while (peak < live && !peak_bytes_.compare_exchange_weak(peak, live)) {
  }
  allocations_.fetch_add(1);
}

void MemoryCounter::subtract(size_t bytes) {
  live_bytes_.fetch_sub(bytes);
  allocations_.fetch_sub(1);
}

MemoryStats MemoryCounter::stats() const {
  return {live_bytes_.load(), peak_bytes_.load(), allocations_.load()};
}

StoragePtr allocate(size_t bytes, std::shared_ptr<MemoryCounter> counter) {
  void* data = allocate_pages(bytes);
  if (!data) return nullptr;
  return std::make_shared<CpuStorage>(data, bytes, std::move(counter));
}

}  // namespace warpgrad::cpu
