#include "backends/cuda/backend.h"

#include <utility>

#include "backends/cuda/operation.h"
#include "backends/cuda/operation_caches.h"
#include "backends/cuda/runtime/copy.h"
#include "backends/cuda/runtime/status.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "core/check.h"
#include "core/host_event.h"

namespace warpgrad::cuda {

namespace {

// Sets an event when the last copy of the closure that holds it goes: after it ran, or when it was dropped unrun.
// Whoever waits for the event never hangs.
class SetWhenGone {
 public:
  explicit SetWhenGone(std::shared_ptr<HostEvent> event) : event_(std::move(event)) {}
  ~SetWhenGone() { event_->set(); }
  SetWhenGone(const SetWhenGone&) = delete;
  SetWhenGone& operator=(const SetWhenGone&) = delete;

 private:
  std::shared_ptr<HostEvent> event_;
};

}  // namespace

CudaBackend::CudaBackend(int device_index) : device_(std::make_shared<CudaDevice>(device_index)) {}

CudaBackend::~CudaBackend() {
  shut_down();
}

std::unique_ptr<Stream> CudaBackend::create_stream() {
  std::erase_if(completions_, [](const auto& queue) { return queue->finished(); });
  auto stream = std::make_unique<CudaStream>(device_);
  completions_.push_back(stream->completion());
  return stream;
}

StoragePtr CudaBackend::allocate(size_t bytes, Stream& stream) {
  device_->expect_working();
  CudaStream& target = cuda_stream(stream);
  return std::make_shared<TensorStorage>(bytes, target.arena(), target.state());
}

StoragePtr CudaBackend::workspace(size_t bytes, Stream& stream) {
  CudaStream& target = cuda_stream(stream);
  return std::make_shared<ArenaStorage>(bytes, target.arena(), target.state());
}

StoragePtr CudaBackend::adopt(void* data, size_t bytes, Stream& stream, std::shared_ptr<void> owner) {
  const DeviceGuard guard(device_->index());
  cudaPointerAttributes attributes = {};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  const bool on_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  WG_CHECK(on_device && (attributes.device == device_->index() || attributes.type == cudaMemoryTypeManaged),
           ErrorCode::kInvalidArgument, "Tensor.fromPointer: the address must be memory of cuda:", device_->index(),
           ", got ", on_device ? concat("memory of cuda:", attributes.device) : "an address that no GPU allocated");
  return std::make_shared<AdoptedCudaStorage>(data, bytes, cuda_stream(stream), std::move(owner));
}

StoragePtr CudaBackend::upload(const std::vector<char>& contents, Stream& stream) {
  std::shared_ptr<StreamState> state = cuda_stream(stream).state();
  const bool capturing = state->capturing();
  if (capturing) {
    if (!uploads_) uploads_ = std::make_shared<StreamState>(device_, true);
    state = uploads_;
  }
  const DeviceGuard guard(device_->index());
  auto storage = std::make_shared<ArenaStorage>(contents.size(), std::shared_ptr<Arena>(state, &state->arena()), state);
  // From pageable memory: the driver takes a copy of its own before the call returns.
  check(cudaMemcpyAsync(storage->data(), contents.data(), contents.size(), cudaMemcpyHostToDevice, state->handle()),
        "the copy to the device");
  if (capturing) check(cudaStreamSynchronize(state->handle()), "the copy to the device");
  return storage;
}

void CudaBackend::write(Stream& stream, StoragePtr storage, const void* host, size_t bytes) {
  cuda_stream(stream).state()->expect_not_capturing("the copy to the device");
  enqueue("the copy to the device", stream, {{}, {storage}}, [&](cudaStream_t handle) {
    const std::shared_ptr<Staging> staging = staging_->take();
    char* to = static_cast<char*>(storage->data());
    const char* from = static_cast<const char*>(host);
    if (Staging::fits(bytes)) {
      staging->send(to, from, bytes, handle);
    } else {
      staging->begin_after(*cuda_stream(stream).state());
      staging->upload(to, from, bytes);
      staging->end_before(handle);
    }
    cuda_stream(stream).when_reached([staging] {});  // goes back to the pool then
  });
}

void CudaBackend::copy_from(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  cuda_stream(stream).state()->expect_not_capturing("the copy to the device");
  const bool from_gpu = src_storage->device().type == DeviceType::kCuda;
  (this->*(from_gpu ? &CudaBackend::copy_from_peer : &CudaBackend::copy_from_cpu))(stream, std::move(dst), src,
                                                                                   std::move(src_storage));
}

void CudaBackend::copy_from_peer(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  CudaStorage& source = static_cast<CudaStorage&>(*src_storage);
  StreamState& source_stream = source.stream();
  source_stream.device().expect_working();
  source_stream.expect_not_capturing("the copy between devices");
  source_stream.device().share_with(device_->index());
  enqueue("the copy between devices", stream, {{}, {dst}}, [&](cudaStream_t handle) {
    StreamState& state = *cuda_stream(stream).state();
    if (source.last_write) state.order_after(source.last_write);
    check(cudaMemcpyPeerAsync(dst->data(), device_->index(), src.data, source.device().index, bytes, handle),
          "cudaMemcpyPeerAsync");
    state.order_before(source_stream.handle());  // which frees the source
  });
}

void CudaBackend::copy_from_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  if (const EventPtr ready = src_storage->last_write) ready->synchronize();
  if (src_storage->failure) std::rethrow_exception(src_storage->failure);
  write(stream, std::move(dst), src.data, static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype));
}

std::function<void()> CudaBackend::enqueue_download(Stream& stream, const StoragePtr& source, const void* data,
                                                    void* host, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  char* to = static_cast<char*>(host);
  const DeviceGuard guard(device_->index());
  const std::shared_ptr<Staging> staging = staging_->take();
  const bool fits = Staging::fits(bytes);
  enqueue("the copy to the host", stream, {{source}, {}}, [&](cudaStream_t handle) {
    if (fits) staging->fetch(from, bytes, handle);
  });
  if (fits) return [=] { staging->unload(to, bytes); };
  auto done = std::make_shared<HostEvent>();
  static_cast<CudaStorage&>(*source).last_download = done;
  return [=, set = std::make_shared<SetWhenGone>(done)] {
    staging->download(to, from, bytes);
    (void)source;  // alive until here
  };
}

void CudaBackend::copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  cuda_stream(stream).state()->expect_not_capturing("the copy to the host");
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  const std::function<void()> finish = enqueue_download(stream, src_storage, src.data, dst->data(), bytes);
  const EventPtr reached = stream.record();
  auto done = std::make_shared<HostEvent>();
  cuda_stream(stream).run_on_completion_thread([=, set = std::make_shared<SetWhenGone>(done)] {
    try {
      reached->synchronize();
      finish();
    } catch (...) {
      dst->failure = std::current_exception();
      throw;
    }
  });
  dst->last_write = done;
}

void CudaBackend::read(Stream& stream, void* host, const TensorView& src, StorageUses uses) {
  cuda_stream(stream).state()->expect_not_capturing("the copy to the host");
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  StoragePtr source = uses.reads.front();
  TensorView dense = src;
  if (!src.contiguous()) {
    dense.set_contiguous_strides();
    source = workspace(bytes, stream);
    dense.data = source->data();
    copy(stream, dense, src, {uses.reads, {source}});
  }
  cuda_stream(stream).when_reached(enqueue_download(stream, source, dense.data, host, bytes));
}

void CudaBackend::copy(Stream& stream, const TensorView& dst, const TensorView& src, StorageUses uses) {
  enqueue("copy", stream, uses, [&](cudaStream_t handle) { launch_copy_convert(dst, src, handle); });
}

void CudaBackend::order_after_uses(Stream& stream, const StoragePtr& storage) {
  StreamState& state = *cuda_stream(stream).state();
  const DeviceGuard guard(device_->index());
  state.order_after_uses(static_cast<CudaStorage&>(*storage));
}

void CudaBackend::zero(Stream& stream, StoragePtr storage) {
  enqueue("zeros", stream, {{}, {storage}}, [&](cudaStream_t handle) {
    check(cudaMemsetAsync(storage->data(), 0, storage->bytes(), handle), "cudaMemsetAsync");
  });
}

std::vector<StoragePtr> CudaBackend::make_readable(Stream& stream, const std::vector<TensorView*>& operands,
                                                   const StorageUses& uses) {
  std::vector<StoragePtr> copies;
  for (TensorView* operand : operands) {
    if (sm90::is_copyable(*operand)) continue;
    TensorView dense = *operand;
    dense.set_contiguous_strides();
    copies.push_back(workspace(static_cast<size_t>(dense.num_elems()) * dtype_bytes(dense.dtype), stream));
    dense.data = copies.back()->data();
    copy(stream, dense, *operand, {uses.reads, {copies.back()}});
    *operand = dense;
  }
  return copies;
}

void CudaBackend::attention_forward(Stream& stream, ops::AttentionForwardParams params, StorageUses uses) {
  const std::vector<StoragePtr> copies = make_readable(stream, {&params.q, &params.k, &params.v}, uses);
  AttentionFwdPlanned& planned = operation_caches(stream).attention_fwd.find_or_make(
      [&](const AttentionFwdPlanned& entry) { return entry.serves(params); },
      [&] {
        AttentionFwdPlanned fresh{params, sm90::plan_attention_fwd(params), {}, nullptr};
        std::vector<char> workspace(fresh.plan.workspace_bytes());
        fresh.plan.write_workspace(workspace.data());
        fresh.workspace = upload(workspace, stream);
        return fresh;
      });
  uses.reads.push_back(planned.workspace);
  enqueue("attentionForward", stream, uses, [&](cudaStream_t handle) {
    sm90::launch_attention_fwd(params, planned.plan, planned.maps, planned.workspace->data(), handle);
  });
}

void CudaBackend::attention_backward(Stream& stream, ops::AttentionBackwardParams params, StorageUses uses) {
  const std::vector<StoragePtr> copies =
      make_readable(stream, {&params.d_out, &params.q, &params.k, &params.v, &params.out}, uses);
  AttentionBwdPlanned& planned = operation_caches(stream).attention_bwd.find_or_make(
      [&](const AttentionBwdPlanned& entry) { return entry.serves(params); },
      [&] {
        AttentionBwdPlanned fresh{params, sm90::plan_attention_bwd(params), {}, nullptr};
        std::vector<char> header(fresh.plan.header_bytes());
        fresh.plan.write_header(header.data());
        fresh.header = upload(header, stream);
        return fresh;
      });
  uses.reads.push_back(planned.header);
  const StoragePtr scratch = workspace(planned.plan.workspace.bytes, stream);
  enqueue("attentionBackward", stream, uses, [&](cudaStream_t handle) {
    sm90::launch_attention_bwd(params, planned.plan, planned.maps, planned.header->data(), scratch->data(), handle);
  });
}

void CudaBackend::shut_down() {
  for (const auto& queue : completions_) queue->drop();
  for (const auto& queue : completions_) queue->join();
  completions_.clear();
}

}  // namespace warpgrad::cuda
