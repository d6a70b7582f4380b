#include "backends/cpu/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cpu/kernels.h"
#include "core/check.h"
#include "core/out_of_memory.h"

namespace warpgrad::cpu {

namespace {

// Enqueues kernel(params, context); the closure owns the parameters.
template <class Params>
void enqueue_kernel(const char* name, Stream& stream, Params&& params, StorageUses uses,
                    void (*kernel)(const Params&, ExecContext&)) {
  static_cast<CpuStream&>(stream).enqueue(
      name, std::move(uses), [params = std::move(params), kernel](ExecContext& context) { kernel(params, context); });
}

}  // namespace

CpuBackend::CpuBackend(int num_threads, Isa isa)
    : engine_(std::make_shared<Engine>(Engine{isa, std::make_shared<ThreadPool>(num_threads)})) {}

CpuBackend::~CpuBackend() {
  shut_down();
}

void CpuBackend::configure(int num_threads, Isa isa) {
  finish_queued_work();
  // First what may fail, so that it changes nothing then.
  if (num_threads != engine_->pool->num_threads()) engine_->pool = std::make_shared<ThreadPool>(num_threads);
  engine_->isa = isa;
}

double CpuBackend::micro_kernel_gflops(DType dtype) {
  ExecContext context(engine_->isa, *engine_->pool, *cancel_);
  return cpu::micro_kernel_gflops(dtype, context);
}

std::unique_ptr<Stream> CpuBackend::create_stream() {
  WG_CHECK(!cancel_->is_set(), ErrorCode::kCancelled, "the environment is ending");
  if (streams_.size() == streams_.capacity()) {
    std::erase_if(streams_, [](const auto& state) { return state->finished(); });
  }
  auto stream = std::make_unique<CpuStream>(engine_, cancel_);
  streams_.push_back(stream->state());
  return stream;
}

StoragePtr CpuBackend::allocate(size_t bytes, Stream&) {
  if (StoragePtr storage = cpu::allocate(bytes, counter_)) return storage;
  // Queued work keeps what was disposed of until it is done.
  finish_queued_work();
  if (StoragePtr storage = cpu::allocate(bytes, counter_)) return storage;
  throw out_of_memory("cpu", bytes, concat("; ", counter_->stats().live_bytes, " bytes are in use by tensors"));
}

void CpuBackend::finish_queued_work() const {
  for (const auto& state : streams_) state->block_until(state->enqueued());
}

StoragePtr CpuBackend::adopt(void* data, size_t bytes, Stream&, std::shared_ptr<void> owner) {
  return std::make_shared<AdoptedStorage>(Device{DeviceType::kCpu, 0}, data, bytes, std::move(owner));
}

void CpuBackend::write(Stream&, StoragePtr storage, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(storage->data(), host, bytes);  // an empty array may have no address
}

void CpuBackend::read(Stream& stream, void* host, const TensorView& src, StorageUses uses) {
  TensorView dst = src;
  dst.data = host;
  dst.set_contiguous_strides();
  copy(stream, dst, src, std::move(uses));
}

void CpuBackend::copy_from(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  TensorView dst_view = src;
  dst_view.data = dst->data();
  copy(stream, dst_view, src, {{std::move(src_storage)}, {std::move(dst)}});
}

void CpuBackend::copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  copy_from(stream, std::move(dst), src, std::move(src_storage));
}

void CpuBackend::copy(Stream& stream, const TensorView& dst, const TensorView& src, StorageUses uses) {
  static_cast<CpuStream&>(stream).enqueue("copy", std::move(uses),
                                          [dst, src](ExecContext& context) { copy_convert(dst, src, context); });
}

void CpuBackend::order_after_uses(Stream& stream, const StoragePtr&) {
  // Readers are not noted one by one: after all that any stream has been given so far.
  for (const auto& state : streams_) {
    const bool idle = state->reached(state->enqueued());
    if (!idle && state != static_cast<CpuStream&>(stream).state()) stream.wait(state->position());
  }
}

void CpuBackend::zero(Stream& stream, StoragePtr storage) {
  static_cast<CpuStream&>(stream).enqueue(
      "zeros", {{}, {storage}}, [storage](ExecContext&) { std::memset(storage->data(), 0, storage->bytes()); });
}

void CpuBackend::attention_forward(Stream& stream, ops::AttentionForwardParams params, StorageUses uses) {
  enqueue_kernel("attentionForward", stream, std::move(params), std::move(uses), cpu::attention_forward);
}

void CpuBackend::attention_backward(Stream& stream, ops::AttentionBackwardParams params, StorageUses uses) {
  enqueue_kernel("attentionBackward", stream, std::move(params), std::move(uses), cpu::attention_backward);
}

int64_t CpuBackend::kda_saved_elems(const ops::KdaSavedDims& dims) const {
  return cpu::kda_saved_elems(dims);
}

void CpuBackend::kda_forward(Stream& stream, ops::KdaForwardParams params, StorageUses uses) {
  ops::check_saved("kdaForward", params.saved, kda_saved_elems(saved_dims(params.options, params.q, params.v)));
  enqueue_kernel("kdaForward", stream, std::move(params), std::move(uses), cpu::kda_forward);
}

void CpuBackend::kda_backward(Stream& stream, ops::KdaBackwardParams params, StorageUses uses) {
  ops::check_saved("kdaBackward", params.saved, kda_saved_elems(saved_dims(params.options, params.q, params.v)));
  enqueue_kernel("kdaBackward", stream, std::move(params), std::move(uses), cpu::kda_backward);
}

void CpuBackend::shut_down() {
  cancel_->set();
  for (const auto& state : streams_) state->drop();
  engine_->runners->end();
  streams_.clear();
}

}  // namespace warpgrad::cpu
