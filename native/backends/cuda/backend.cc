#include "backends/cuda/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/runtime/copy.h"
#include "backends/cuda/runtime/status.h"
#include "backends/cuda/sm90/attention_fwd/launch.h"
#include "core/check.h"
#include "core/host_event.h"

namespace warpgrad::cuda {

namespace {

CudaStream& cuda_stream(Stream& stream) {
  return static_cast<CudaStream&>(stream);
}

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

// Runs `launch` on the stream, after the writes of what it uses.
template <class Launch>
void enqueue(const char* operation, Stream& stream, const StorageUses& uses, Launch launch) {
  CudaStream& target = cuda_stream(stream);
  const DeviceGuard guard(target.state()->device().index());
  target.before(operation, uses);
  launch(target.handle());
  target.after(uses);
}

[[noreturn]] void refuse(const char* operation) {
  throw Error(ErrorCode::kUnsupported, concat(operation, ": this build has no GPU kernel for it; use device 'cpu'"));
}

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
  const std::shared_ptr<StreamState>& state = cuda_stream(stream).state();
  return std::make_shared<CudaStorage>(device_->allocate(bytes, state->handle()), bytes, state);
}

void CudaBackend::write(Stream& stream, StoragePtr storage, const void* host, size_t bytes) {
  enqueue("the copy to the device", stream, {{}, {storage}}, [&](cudaStream_t handle) {
    const std::shared_ptr<Staging> staging = staging_->take();
    staging->begin_after(*cuda_stream(stream).state());
    staging->upload(static_cast<char*>(storage->data()), static_cast<const char*>(host), bytes);
    staging->end_before(handle);
    cuda_stream(stream).when_reached([staging] {});  // goes back to the pool then
  });
}

void CudaBackend::copy_from_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  const EventPtr ready = src_storage->last_write;
  if (!ready || ready->reached()) {
    if (src_storage->failure) std::rethrow_exception(src_storage->failure);
    return write(stream, std::move(dst), src.data, bytes);
  }
  // The CPU is still at it: the completion thread copies when it is done, and the stream, not this thread, waits.
  enqueue("the copy to the device", stream, {{}, {dst}}, [&](cudaStream_t handle) {
    const std::shared_ptr<Staging> staging = staging_->take();
    staging->begin_after(*cuda_stream(stream).state());
    auto done = std::make_shared<HostEvent>();
    cuda_stream(stream).run_on_completion_thread([=, set = std::make_shared<SetWhenGone>(done)] {
      ready->synchronize();
      if (src_storage->failure) std::rethrow_exception(src_storage->failure);
      staging->upload(static_cast<char*>(dst->data()), static_cast<const char*>(src.data), bytes);
      staging->wait();
    });
    auto* argument = new std::shared_ptr<HostEvent>(done);
    const cudaError_t status = cudaLaunchHostFunc(
        handle,
        [](void* data) {
          const std::unique_ptr<std::shared_ptr<HostEvent>> event(static_cast<std::shared_ptr<HostEvent>*>(data));
          (*event)->synchronize();
        },
        argument);
    if (status != cudaSuccess) delete argument;
    check(status, "cudaLaunchHostFunc");
  });
}

void CudaBackend::copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  auto done = std::make_shared<HostEvent>();
  enqueue("the copy to the host", stream, {{src_storage}, {}}, [](cudaStream_t) {});
  const EventPtr reached = stream.record();
  const std::shared_ptr<Staging> staging = staging_->take();
  cuda_stream(stream).run_on_completion_thread([=, set = std::make_shared<SetWhenGone>(done)] {
    try {
      reached->synchronize();
      staging->download(static_cast<char*>(dst->data()), static_cast<const char*>(src.data), bytes);
    } catch (...) {
      dst->failure = std::current_exception();
      throw;
    }
    (void)src_storage;  // alive until here
  });
  dst->last_write = done;
}

void CudaBackend::read(Stream& stream, void* host, const TensorView& src, StorageUses uses) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  StoragePtr source = uses.reads.front();
  const void* data = src.data;
  if (src.contiguous()) {
    enqueue("the copy to the host", stream, uses, [](cudaStream_t) {});
  } else {
    TensorView dense = src;
    dense.set_contiguous_strides();
    source = allocate(bytes, stream);
    data = dense.data = source->data();
    copy(stream, dense, src, {uses.reads, {source}});
  }
  const std::shared_ptr<Staging> staging = staging_->take();
  cuda_stream(stream).when_reached([=] {
    staging->download(static_cast<char*>(host), static_cast<const char*>(data), bytes);
    (void)source;  // alive until here
  });
}

void CudaBackend::copy(Stream& stream, const TensorView& dst, const TensorView& src, StorageUses uses) {
  enqueue("copy", stream, uses, [&](cudaStream_t handle) { launch_copy_convert(dst, src, handle); });
}

void CudaBackend::zero(Stream& stream, StoragePtr storage) {
  enqueue("zeros", stream, {{}, {storage}}, [&](cudaStream_t handle) {
    check(cudaMemsetAsync(storage->data(), 0, storage->bytes(), handle), "cudaMemsetAsync");
  });
}

void CudaBackend::attention_forward(Stream& stream, ops::AttentionForwardParams params, StorageUses uses) {
  std::vector<StoragePtr> copies;  // of operands that the kernel can't read as they lie
  for (TensorView* operand : {&params.q, &params.k, &params.v}) {
    if (sm90::attention_fwd_can_read(*operand)) continue;
    TensorView dense = *operand;
    dense.set_contiguous_strides();
    copies.push_back(allocate(static_cast<size_t>(dense.num_elems()) * dtype_bytes(dense.dtype), stream));
    dense.data = copies.back()->data();
    copy(stream, dense, *operand, {uses.reads, {copies.back()}});
    *operand = dense;
  }
  const sm90::AttentionFwdPlan plan = sm90::plan_attention_fwd(params);
  const StoragePtr workspace = allocate(plan.workspace_bytes(), stream);
  if (plan.sequences.empty()) {
    zero(stream, workspace);
  } else {
    std::vector<char> host(workspace->bytes());
    plan.write_workspace(host.data());
    write(stream, workspace, host.data(), host.size());
  }
  enqueue("attentionForward", stream, uses,
          [&](cudaStream_t handle) { sm90::launch_attention_fwd(params, plan, workspace->data(), handle); });
}

void CudaBackend::attention_backward(Stream&, ops::AttentionBackwardParams, StorageUses) {
  refuse("attentionBackward");
}

void CudaBackend::kda_forward(Stream&, ops::KdaForwardParams, StorageUses) {
  refuse("kdaForward");
}

void CudaBackend::kda_backward(Stream&, ops::KdaBackwardParams, StorageUses) {
  refuse("kdaBackward");
}

void CudaBackend::shut_down() {
  for (const auto& queue : completions_) queue->drop();
  for (const auto& queue : completions_) queue->join();
  completions_.clear();
}

}  // namespace warpgrad::cuda
