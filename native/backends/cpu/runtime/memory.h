#pragma once

#include <atomic>
#include <memory>

#include "core/storage.h"

namespace warpgrad::cpu {

// Counts the bytes of live allocations; outlives the backend as long as a storage does.
class MemoryCounter {
 public:
  void add(size_t bytes);
  void subtract(size_t bytes);
  MemoryStats stats() const;

 private:
  std::atomic<size_t> live_bytes_{0};
  std::atomic<size_t> peak_bytes_{0};
  std::atomic<size_t> allocations_{0};
};

// Uninitialised memory aligned to a cache line; null when the system has none.
StoragePtr allocate(size_t bytes, std::shared_ptr<MemoryCounter> counter);

}  // namespace warpgrad::cpu
