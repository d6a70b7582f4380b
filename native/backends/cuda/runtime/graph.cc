#include "backends/cuda/runtime/graph.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

GraphMemory::GraphMemory(std::shared_ptr<StreamState> captured)
    : captured_(std::move(captured)), own_(std::make_shared<StreamState>(captured_->shared_device(), true)) {
  own_->arena().keep_all(true);
}

GraphMemory::~GraphMemory() {
  // Freed after the last replay.
  captured_->device().outside_capture([captured = captured_, own = own_] {
    try {
      captured->order_before(own->handle());
    } catch (const std::exception&) {
      // Only after a fault or while the process ends; the memory goes with the context then.
    }
  });
}

std::shared_ptr<Arena> GraphMemory::arena() {
  return {shared_from_this(), &own_->arena()};
}

void CaptureRecord::add(const StorageUses& uses) {
  const auto note = [this](const StoragePtr& storage) {
    const bool inside = static_cast<const CudaStorage&>(*storage).arena() == memory->arena().get();
    if (!inside && std::find(outside.begin(), outside.end(), storage) == outside.end()) outside.push_back(storage);
  };
  for (const StoragePtr& storage : uses.reads) note(storage);
  for (const StoragePtr& storage : uses.writes) {
    note(storage);
    writes.push_back(storage);
  }
}

Capture::Capture(StreamState& stream) : stream_(stream) {
  stream_.device().expect_working();
  stream_.arena().keep_all(true);
  stream_.device().begin_capture();
  stream_.set_capturing(true);
  // Relaxed: other streams of this thread go on meanwhile.
  const cudaError_t status = cudaStreamBeginCapture(stream_.handle(), cudaStreamCaptureModeRelaxed);
  if (status == cudaSuccess) return;
  leave(nullptr);
  check(status, "cudaStreamBeginCapture");
}

Capture::~Capture() {
  if (!open_) return;
  cudaGraph_t graph = nullptr;
  if (leave(&graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
}

cudaError_t Capture::leave(cudaGraph_t* graph) noexcept {
  open_ = false;
  const cudaError_t status = graph ? cudaStreamEndCapture(stream_.handle(), graph) : cudaSuccess;
  stream_.set_capturing(false);
  stream_.device().end_capture();
  stream_.arena().keep_all(false);
  return status;
}

cudaGraphExec_t Capture::end() {
  cudaGraph_t graph = nullptr;
  check(leave(&graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return executable;
}

void CudaGraph::replay() {
  CudaDevice& device = stream_->device();
  device.expect_working();
  stream_->expect_not_capturing("replay");
  const DeviceGuard guard(device.index());
  for (const StoragePtr& storage : record_->outside) {
    if (storage->last_write) stream_->order_after(storage->last_write);
  }
  std::vector<StoragePtr> written;
  for (const auto& weak : record_->writes) {
    const StoragePtr storage = weak.lock();
    if (!storage) continue;
    stream_->order_after_uses(static_cast<CudaStorage&>(*storage));
    written.push_back(storage);
  }
  stream_->last_operation = "the replay of a graph";
  device.check_work(cudaGraphLaunch(graph_, stream_->handle()), stream_->last_operation);
  const EventPtr event = std::make_shared<OperationEvent>(stream_);
  for (const StoragePtr& storage : written) storage->last_write = event;
}

}  // namespace warpgrad::cuda
