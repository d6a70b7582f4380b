#pragma once

#include <memory>
#include <vector>

#include "backends/cpu/runtime/isa.h"
#include "backends/cpu/runtime/memory.h"
#include "backends/cpu/runtime/stream.h"
#include "ops/backend.h"

namespace warpgrad::cpu {

class CpuBackend : public ops::Backend {
 public:
  CpuBackend(int num_threads, Isa isa);
  ~CpuBackend() override;

  // Waits for queued work, then changes what later work runs with.
  void configure(int num_threads, Isa isa);
  int num_threads() const { return engine_->pool->num_threads(); }
  Isa isa() const { return engine_->isa; }
  double micro_kernel_gflops(DType dtype);  // blocks

  std::unique_ptr<Stream> create_stream() override;
  StoragePtr allocate(size_t bytes, Stream& stream) override;
  StoragePtr adopt(void* data, size_t bytes, Stream& stream, std::shared_ptr<void> owner) override;
  MemoryStats memory_stats() const override { return counter_->stats(); }
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
  void finish_queued_work() const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<CancelFlag> cancel_ = std::make_shared<CancelFlag>();
  std::shared_ptr<MemoryCounter> counter_ = std::make_shared<MemoryCounter>();
  std::vector<std::shared_ptr<StreamState>> streams_;  // all that may have work
};

}  // namespace warpgrad::cpu
