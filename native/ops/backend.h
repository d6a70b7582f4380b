#pragma once

#include <memory>

#include "core/storage.h"
#include "core/stream.h"
#include "core/tensor_view.h"
#include "ops/attention.h"
#include "ops/kda.h"

namespace warpgrad::ops {

// What a device must be able to do. Operations are enqueued on a stream of the same device and return at once; `uses`
// names the storages behind the parameters. Parameters are checked by the caller (ops::check).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual StoragePtr allocate(size_t bytes, Stream& stream) = 0;
  // Memory of this device that others made; `owner` keeps it alive and is let go with the storage, on any thread.
  virtual StoragePtr adopt(void* data, size_t bytes, Stream& stream, std::shared_ptr<void> owner) = 0;
  virtual MemoryStats memory_stats() const = 0;

  // Fills a storage that no queued work uses yet; the host memory may change once this returns.
  virtual void write(Stream& stream, StoragePtr storage, const void* host, size_t bytes) = 0;
  // Copies src, row-major, to host memory that stays valid until the work is done.
  virtual void read(Stream& stream, void* host, const TensorView& src, StorageUses uses) = 0;
  // Copies from another device to this one, or from this one to the CPU, ordered on a stream of this device; contiguous
  // elements of one dtype.
  virtual void copy_from(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) = 0;
  virtual void copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) = 0;
  // dst = src converted to dst's dtype; equal shapes, any strides.
  virtual void copy(Stream& stream, const TensorView& dst, const TensorView& src, StorageUses uses) = 0;
  // Later work on `stream` starts after all work that uses the storage so far, on any stream: it may write there again.
  virtual void order_after_uses(Stream& stream, const StoragePtr& storage) = 0;
  virtual void zero(Stream& stream, StoragePtr storage) = 0;
  virtual void attention_forward(Stream& stream, AttentionForwardParams params, StorageUses uses) = 0;
  virtual void attention_backward(Stream& stream, AttentionBackwardParams params, StorageUses uses) = 0;
  // Size of what the saving mode keeps.
  virtual int64_t kda_saved_elems(const KdaSavedDims& dims) const = 0;
  virtual void kda_forward(Stream& stream, KdaForwardParams params, StorageUses uses) = 0;
  virtual void kda_backward(Stream& stream, KdaBackwardParams params, StorageUses uses) = 0;

  // Drops queued work, waits for what runs, ends the threads. Nothing may be enqueued afterwards.
  virtual void shut_down() = 0;
};

}  // namespace warpgrad::ops
