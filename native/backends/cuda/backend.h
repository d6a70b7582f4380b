#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/memory.h"
#include "backends/cuda/runtime/stream.h"
#include "ops/backend.h"

namespace warpgrad::cuda {

struct KdaPlanned;

class CudaBackend : public ops::Backend {
 public:
  explicit CudaBackend(int device_index);
  ~CudaBackend() override;

  std::unique_ptr<Stream> create_stream() override;
  StoragePtr allocate(size_t bytes, Stream& stream) override;
  StoragePtr adopt(void* data, size_t bytes, Stream& stream, std::shared_ptr<void> owner) override;
  MemoryStats memory_stats() const override { return device_->stats(); }
  void write(Stream& stream, StoragePtr storage, const void* host, size_t bytes) override;
  void read(Stream& stream, void* host, const TensorView& src, StorageUses uses) override;
  void copy_from(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) override;
  void copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) override;
  void copy(Stream& stream, const TensorView& dst, const TensorView& src, StorageUses uses) override;
  void order_after_uses(Stream& stream, const StoragePtr& storage) override;
  void zero(Stream& stream, StoragePtr storage) override;
  void attention_forward(Stream& stream, ops::AttentionForwardParams params, StorageUses uses) override;
  void attention_backward(Stream& stream, ops::AttentionBackwardParams params, StorageUses uses) override;
  int64_t kda_saved_elems(const ops::KdaSavedDims& dims) const override;
  void kda_forward(Stream& stream, ops::KdaForwardParams params, StorageUses uses) override;
  void kda_backward(Stream& stream, ops::KdaBackwardParams params, StorageUses uses) override;
  void shut_down() override;

 private:
  class KdaOperands;

  void copy_from_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage);
  // Enqueues the copy of contiguous elements to the host; the result finishes it once the stream has come here.
  std::function<void()> enqueue_download(Stream& stream, const StoragePtr& source, const void* data, void* host,
                                         size_t bytes);
  void copy_from_peer(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage);
  // Replaces operands that the kernels can't read as they lie by contiguous copies; returns these.
  std::vector<StoragePtr> make_readable(Stream& stream, const std::vector<TensorView*>& operands,
                                        const StorageUses& uses);
  // The plan of a KDA's sequences.
  template <class Params>
  const KdaPlanned& kda_planned(Stream& stream, const Params& params);
  // Memory for work on a stream that is no tensor's.
  StoragePtr workspace(size_t bytes, Stream& stream);
  // The same with these contents, which a capture does not record: it is there before.
  StoragePtr upload(const std::vector<char>& contents, Stream& stream);

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<StreamState> uploads_;  // for captures; made with the first
  std::shared_ptr<StagingPool> staging_ = std::make_shared<StagingPool>();
  std::vector<std::shared_ptr<CompletionQueue>> completions_;  // all whose threads may run
};

}  // namespace warpgrad::cuda
