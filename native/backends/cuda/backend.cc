#include "backends/cuda/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/runtime/copy.h"
#include "backends/cuda/runtime/status.h"
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

// Two streams for the length of a copy.
class CopyStreams {
 public:
  CopyStreams() {
    for (cudaStream_t& stream : streams_) {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
  }
  ~CopyStreams() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  cudaStream_t operator[](size_t i) const { return streams_[i]; }

 private:
  cudaStream_t streams_[2] = {};
};

// Device to pageable host memory through page-locked blocks, two in turn: the copy of one runs beside the emptying of
// the other. Blocks the calling thread.
void download_blocks(char* host, const char* device, size_t bytes, const std::shared_ptr<PinnedPool>& pool) {
  const size_t block_bytes = PinnedPool::kBlockBytes;
  const size_t num_blocks = (bytes + block_bytes - 1) / block_bytes;
  const PinnedBlock blocks[2] = {PinnedBlock(pool), PinnedBlock(pool)};
  const CopyStreams streams;
  const auto size_of = [&](size_t block) { return std::min(block_bytes, bytes - block * block_bytes); };
  for (size_t block = 0; block <= num_blocks; ++block) {
    if (block < num_blocks) {
      check(cudaMemcpyAsync(blocks[block % 2].data(), device + block * block_bytes, size_of(block),
                            cudaMemcpyDeviceToHost, streams[block % 2]),
            "the copy to the host");
    }
    if (block == 0) continue;
    const size_t previous = block - 1;
    check(cudaStreamSynchronize(streams[previous % 2]), "the copy to the host");
    std::memcpy(host + previous * block_bytes, blocks[previous % 2].data(), size_of(previous));
  }
}

// The same in the other direction.
void upload_blocks(char* device, const char* host, size_t bytes, const std::shared_ptr<PinnedPool>& pool) {
  const size_t block_bytes = PinnedPool::kBlockBytes;
  const PinnedBlock blocks[2] = {PinnedBlock(pool), PinnedBlock(pool)};
  CopyStreams streams;
  for (size_t offset = 0, turn = 0; offset < bytes; offset += block_bytes, turn ^= 1) {
    const size_t size = std::min(block_bytes, bytes - offset);
    check(cudaStreamSynchronize(streams[turn]), "the copy to the device");  // the block's previous content has left
    std::memcpy(blocks[turn].data(), host + offset, size);
    check(cudaMemcpyAsync(device + offset, blocks[turn].data(), size, cudaMemcpyHostToDevice, streams[turn]),
          "the copy to the device");
  }
  for (size_t turn : {0, 1}) check(cudaStreamSynchronize(streams[turn]), "the copy to the device");
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

void CudaBackend::upload(Stream& stream, StoragePtr dst, const void* host, size_t bytes, EventPtr ready,
                         std::shared_ptr<void> source) {
  enqueue("the copy to the device", stream, {{}, {dst}}, [&](cudaStream_t handle) {
    auto done = std::make_shared<HostEvent>();
    cuda_stream(stream).run_on_completion_thread([=, pinned = pinned_, set = std::make_shared<SetWhenGone>(done)] {
      if (ready) ready->synchronize();
      upload_blocks(static_cast<char*>(dst->data()), static_cast<const char*>(host), bytes, pinned);
      (void)source;  // alive until here
    });
    // The stream itself waits, not the thread that enqueues.
    check(cudaLaunchHostFunc(
              handle,
              [](void* argument) {
                const std::unique_ptr<std::shared_ptr<HostEvent>> event(
                    static_cast<std::shared_ptr<HostEvent>*>(argument));
                (*event)->synchronize();
              },
              new std::shared_ptr<HostEvent>(done)),
          "cudaLaunchHostFunc");
  });
}

void CudaBackend::write(Stream& stream, StoragePtr storage, const void* host, size_t bytes) {
  if (bytes > PinnedPool::kBlockBytes) {
    auto copy_of_host =
        std::make_shared<std::vector<char>>(static_cast<const char*>(host), static_cast<const char*>(host) + bytes);
    upload(stream, std::move(storage), copy_of_host->data(), bytes, nullptr, copy_of_host);
    return;
  }
  enqueue("the copy to the device", stream, {{}, {storage}}, [&](cudaStream_t handle) {
    auto block = std::make_shared<PinnedBlock>(pinned_);
    std::memcpy(block->data(), host, bytes);
    check(cudaMemcpyAsync(storage->data(), block->data(), bytes, cudaMemcpyHostToDevice, handle), "cudaMemcpyAsync");
    cuda_stream(stream).when_reached([block] {});  // the block goes back to its pool then
  });
}

void CudaBackend::copy_from_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  const EventPtr ready = src_storage->last_write;
  upload(stream, std::move(dst), src.data, bytes, ready, std::move(src_storage));
}

void CudaBackend::copy_to_cpu(Stream& stream, StoragePtr dst, const TensorView& src, StoragePtr src_storage) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  auto done = std::make_shared<HostEvent>();
  enqueue("the copy to the host", stream, {{src_storage}, {}}, [](cudaStream_t) {});
  const EventPtr reached = stream.record();
  cuda_stream(stream).run_on_completion_thread([=, pinned = pinned_, set = std::make_shared<SetWhenGone>(done)] {
    try {
      reached->synchronize();
      download_blocks(static_cast<char*>(dst->data()), static_cast<const char*>(src.data), bytes, pinned);
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
  cuda_stream(stream).when_reached([host, data, bytes, source, pinned = pinned_] {
    download_blocks(static_cast<char*>(host), static_cast<const char*>(data), bytes, pinned);
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

void CudaBackend::attention_forward(Stream&, ops::AttentionForwardParams, StorageUses) {
  refuse("attentionForward");
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
