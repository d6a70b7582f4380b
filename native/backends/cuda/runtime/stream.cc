#include "backends/cuda/runtime/stream.h"

#include <utility>

#include "backends/cuda/runtime/memory.h"
#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

// ---- StreamState, events
// ---------------------------------------------------------------------------------------------

StreamState::StreamState(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {
  device_->expect_working();
  const DeviceGuard guard(device_->index());
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

StreamState::~StreamState() {
  cudaStreamDestroy(handle_);
}

void order(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  cudaError_t status = cudaEventRecord(event, first);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(second, event, 0);
  cudaEventDestroy(event);  // the wait stays in force
  check(status, "cudaStreamWaitEvent");
}

CudaEvent::CudaEvent(std::shared_ptr<StreamState> stream, const char* operation)
    : stream_(std::move(stream)), operation_(operation) {
  stream_->device().expect_working();
  const DeviceGuard guard(stream_->device().index());
  check(cudaEventCreateWithFlags(&handle_, cudaEventBlockingSync), "cudaEventCreateWithFlags");
  const cudaError_t status = cudaEventRecord(handle_, stream_->handle());
  if (status == cudaSuccess) return;
  cudaEventDestroy(handle_);
  stream_->device().check_work(status, operation_);
}

CudaEvent::~CudaEvent() {
  cudaEventDestroy(handle_);
}

bool CudaEvent::reached() const {
  return cudaEventQuery(handle_) != cudaErrorNotReady;
}

void CudaEvent::synchronize() const {
  stream_->device().check_work(cudaEventSynchronize(handle_), operation_);
}

bool OperationEvent::reached() const {
  return cudaStreamQuery(stream_->handle()) != cudaErrorNotReady;
}

void OperationEvent::synchronize() const {
  stream_->device().check_work(cudaStreamSynchronize(stream_->handle()), operation_);
}

// ---- CudaStream
// ------------------------------------------------------------------------------------------------------

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device)
    : state_(std::make_shared<StreamState>(device)),
      completion_(std::make_shared<CompletionQueue>(std::move(device))) {}

void CudaStream::wait(EventPtr event) {
  state_->device().expect_working();
  const DeviceGuard guard(state_->device().index());
  if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.get())) {
    check(cudaStreamWaitEvent(handle(), recorded->handle(), 0), "cudaStreamWaitEvent");
  } else if (const auto* operation = dynamic_cast<const OperationEvent*>(event.get())) {
    if (&operation->stream() != state_.get()) operation->stream().order_before(handle());
  }
}

void CudaStream::synchronize() {
  const DeviceGuard guard(state_->device().index());
  state_->device().check_work(cudaStreamSynchronize(handle()), last_operation_);
  completion_->drain();
  if (std::exception_ptr failure = completion_->take_failure()) std::rethrow_exception(failure);
}

void CudaStream::notify(std::function<void(std::exception_ptr)> done) {
  completion_->push({last_operation_, std::make_shared<CudaEvent>(state_, last_operation_), nullptr, std::move(done)});
}

void CudaStream::run_on_completion_thread(std::function<void()> work) {
  completion_->push({last_operation_, nullptr, std::move(work), nullptr});
}

void CudaStream::when_reached(std::function<void()> work) {
  completion_->push({last_operation_, std::make_shared<CudaEvent>(state_, last_operation_), std::move(work), nullptr});
}

void CudaStream::before(const char* operation, const StorageUses& uses) {
  state_->device().expect_working();
  last_operation_ = operation;
  const auto order_after = [this](const StoragePtr& storage) {
    if (storage->last_write) wait(storage->last_write);
    static_cast<CudaStorage&>(*storage).used_on(state_);
  };
  for (const StoragePtr& storage : uses.reads) order_after(storage);
  for (const StoragePtr& storage : uses.writes) order_after(storage);
}

void CudaStream::after(const StorageUses& uses) {
  state_->device().check_work(cudaGetLastError(), last_operation_);
  const EventPtr event = std::make_shared<OperationEvent>(state_, last_operation_);
  for (const StoragePtr& storage : uses.writes) storage->last_write = event;
}

}  // namespace warpgrad::cuda
