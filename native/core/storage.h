#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/stream.h"

namespace warpgrad {

// One allocation on one device, shared by the tensors that view it and by the queued operations that use it.
class Storage {
 public:
  Storage(Device device, void* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device() const { return device_; }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // JavaScript tensors that share it. Only the thread that enqueues touches it.
  int num_handles = 0;

  // Set when an operation that writes here is enqueued, so that a reader on another stream can wait for it.
  // Only the thread that enqueues touches it.
  EventPtr last_write;

  // Why the contents can't be used: the operation that should have written them failed. Whoever reads this storage
  // fails with the same error. Written by the stream that runs the operation, read after its event.
  std::exception_ptr failure;

 private:
  Device device_;
  void* data_;
  size_t bytes_;
};
using StoragePtr = std::shared_ptr<Storage>;

// Memory that somebody else frees once `owner` is let go.
class AdoptedStorage : public Storage {
 public:
  AdoptedStorage(Device device, void* data, size_t bytes, std::shared_ptr<void> owner)
      : Storage(device, data, bytes), owner_(std::move(owner)) {}

 private:
  std::shared_ptr<void> owner_;
};

// The storages that a queued operation keeps alive and is ordered by.
struct StorageUses {
  std::vector<StoragePtr> reads;
  std::vector<StoragePtr> writes;
};

struct MemoryStats {
  size_t live_bytes = 0;
  size_t peak_bytes = 0;
  size_t allocations = 0;  // live ones
};

}  // namespace warpgrad
