#include "backends/cuda/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cuda/runtime/copy.h"
#include "backends/cuda/runtime/status.h"
#include "core/check.h"

namespace warpgrad::cuda {

namespace {

CudaStream& cuda_stream(Stream& stream) {
  return static_cast<CudaStream&>(stream);
}

// Runs `launch` on the stream, after the writes of what it uses.
template <class Launch>
void enqueue(const char* operation, Stream& stream, const StorageUses& uses, Launch launch) {
  CudaStream& target = cuda_stream(stream);
  const DeviceGuard guard(target.state()->device().index());
  target.before(operation, uses);
  launch(target.handle());
  target.after(uses);
}

// Device to pageable host memory through page-locked blocks, two in turn: the copy of one runs beside the emptying of
// the other. Blocks the calling thread.
void download(char* host, const char* device, size_t bytes, const std::shared_ptr<PinnedPool>& pool) {
  const size_t block_bytes = PinnedPool::kBlockBytes;
  const size_t num_blocks = (bytes + block_bytes - 1) / block_bytes;
  const PinnedBlock blocks[2] = {PinnedBlock(pool), PinnedBlock(pool)};
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams)
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const auto size_of = [&](size_t block) { return std::min(block_bytes, bytes - block * block_bytes); };
  cudaError_t status = cudaSuccess;
  for (size_t block = 0; block <= num_blocks && status == cudaSuccess; ++block) {
    if (block < num_blocks) {
      status = cudaMemcpyAsync(blocks[block % 2].data(), device + block * block_bytes, size_of(block),
                               cudaMemcpyDeviceToHost, streams[block % 2]);
    }
    if (block > 0 && status == cudaSuccess) {
      const size_t previous = block - 1;
      status = cudaStreamSynchronize(streams[previous % 2]);
      if (status == cudaSuccess) {
        std::memcpy(host + previous * block_bytes, blocks[previous % 2].data(), size_of(previous));
      }
    }
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  check(status, "the copy to the host");
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
    auto used_blocks = std::make_shared<std::vector<std::unique_ptr<PinnedBlock>>>();
    for (size_t offset = 0; offset < bytes; offset += PinnedPool::kBlockBytes) {
      const size_t size = std::min(PinnedPool::kBlockBytes, bytes - offset);
      used_blocks->push_back(std::make_unique<PinnedBlock>(pinned_));
      std::memcpy(used_blocks->back()->data(), static_cast<const char*>(host) + offset, size);
      check(cudaMemcpyAsync(static_cast<char*>(storage->data()) + offset, used_blocks->back()->data(), size,
                            cudaMemcpyHostToDevice, handle),
            "cudaMemcpyAsync");
    }
    cuda_stream(stream).when_reached([used_blocks] { used_blocks->clear(); });
  });
}

void CudaBackend::read(Stream& stream, void* host, const TensorView& src, StorageUses uses) {
  const size_t bytes = static_cast<size_t>(src.num_elems()) * dtype_bytes(src.dtype);
  StoragePtr source = uses.reads.front();
  const void* data = src.data;
  if (!src.contiguous()) {
    TensorView dense = src;
    dense.set_contiguous_strides();
    source = allocate(bytes, stream);
    data = dense.data = source->data();
    copy(stream, dense, src, {uses.reads, {source}});
  } else {
    enqueue("the copy to the host", stream, uses, [](cudaStream_t) {});
  }
  cuda_stream(stream).when_reached([host, data, bytes, source, pinned = pinned_] {
    download(static_cast<char*>(host), static_cast<const char*>(data), bytes, pinned);
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
