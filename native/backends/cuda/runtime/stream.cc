#include "backends/cuda/runtime/stream.h"

#include <utility>

#include "backends/cuda/runtime/graph.h"
#include "backends/cuda/runtime/memory.h"
#include "backends/cuda/runtime/status.h"
#include "core/check.h"

namespace warpgrad::cuda {

// ---- StreamState
// -----------------------------------------------------------------------------------------------------

void order(cudaStream_t first, cudaStream_t second) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  cudaError_t status = cudaEventRecord(event, first);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(second, event, 0);
  cudaEventDestroy(event);  // the wait stays in force
  check(status, "cudaStreamWaitEvent");
}

StreamState::StreamState(std::shared_ptr<CudaDevice> device, bool memory_for_any_stream)
    : device_(std::move(device)), handle_(create()), arena_(device_, handle_.get(), memory_for_any_stream) {}

cudaStream_t StreamState::create() const {
  device_->expect_working();
  const DeviceGuard guard(device_->index());
  cudaStream_t handle = nullptr;
  check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return handle;
}

void StreamState::expect_not_capturing(const char* what) const {
  WG_CHECK(!capturing(), ErrorCode::kUnsupported, what,
           ": the stream is being captured, and this can't be part of a graph");
}

void StreamState::order_before(cudaStream_t waiter) const {
  expect_not_capturing("waiting for a stream");
  const DeviceGuard guard(device_->index());
  order(handle(), waiter);
}

void StreamState::order_after(const EventPtr& event) {
  if (const auto* operation = dynamic_cast<const OperationEvent*>(event.get())) {
    if (&operation->stream() == this) return;
    if (!capturing()) return operation->stream().order_before(handle());
  }
  // A graph can't depend on what lies outside: that has to be done before.
  if (capturing()) return event->synchronize();
  if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.get())) {
    check(cudaStreamWaitEvent(handle(), recorded->handle(), 0), "cudaStreamWaitEvent");
  } else {
    event->synchronize();
  }
}

void StreamState::order_after_uses(CudaStorage& storage) {
  if (capturing()) return;  // each replay does
  if (storage.last_write) order_after(storage.last_write);
  if (storage.last_download) order_after(storage.last_download);
  // Its own stream is not among the users: readers there, and what had its memory before.
  if (&storage.stream() != this) storage.stream().order_before(handle());
  for (const auto& user : storage.users()) {
    if (user.get() != this) user->order_before(handle());
  }
}

// ---- Events
// ----------------------------------------------------------------------------------------------------------

CudaEvent::CudaEvent(std::shared_ptr<StreamState> stream)
    : stream_(std::move(stream)), operation_(stream_->last_operation) {
  stream_->device().expect_working();
  stream_->expect_not_capturing("waiting for a stream");
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

double CudaEvent::milliseconds_since(const Event& earlier) const {
  const auto* other = dynamic_cast<const CudaEvent*>(&earlier);
  WG_CHECK(other, ErrorCode::kInternal, "the events have no times to compare");
  float milliseconds = 0;
  stream_->device().check_work(cudaEventElapsedTime(&milliseconds, other->handle_, handle_), "cudaEventElapsedTime");
  return milliseconds;
}

bool OperationEvent::reached() const {
  return !stream_->capturing() && cudaStreamQuery(stream_->handle()) != cudaErrorNotReady;
}

void OperationEvent::synchronize() const {
  stream_->expect_not_capturing("waiting for a stream");
  stream_->device().check_work(cudaStreamSynchronize(stream_->handle()), operation_);
}

double OperationEvent::milliseconds_since(const Event&) const {
  throw Error(ErrorCode::kInternal, "the end of an operation has no time");
}

// ---- CudaStream
// ------------------------------------------------------------------------------------------------------

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device)
    : state_(std::make_shared<StreamState>(device)),
      completion_(std::make_shared<CompletionQueue>(std::move(device))) {}

CudaStream::~CudaStream() {
  completion_->close();
}

EventPtr CudaStream::record() {
  return std::make_shared<CudaEvent>(state_);
}

void CudaStream::wait(EventPtr event) {
  state_->device().expect_working();
  state_->expect_not_capturing("wait");
  const DeviceGuard guard(state_->device().index());
  state_->order_after(event);
}

void CudaStream::synchronize() {
  state_->expect_not_capturing("synchronize");
  const DeviceGuard guard(state_->device().index());
  state_->device().check_work(cudaStreamSynchronize(handle()), state_->last_operation);
  completion_->drain();
  if (std::exception_ptr failure = completion_->take_failure()) std::rethrow_exception(failure);
}

void CudaStream::notify(std::function<void(std::exception_ptr)> done) {
  completion_->push({state_->last_operation, std::make_shared<CudaEvent>(state_), nullptr, std::move(done)});
}

void CudaStream::run_on_completion_thread(std::function<void()> work) {
  completion_->push({state_->last_operation, nullptr, std::move(work), nullptr});
}

void CudaStream::when_reached(std::function<void()> work) {
  completion_->push({state_->last_operation, std::make_shared<CudaEvent>(state_), std::move(work), nullptr});
}

std::shared_ptr<Arena> CudaStream::arena() const {
  return capture_ ? capture_->memory->arena() : std::shared_ptr<Arena>(state_, &state_->arena());
}

void CudaStream::before(const char* operation, const StorageUses& uses) {
  state_->device().expect_working();
  state_->last_operation = operation;
  const auto order_after_write = [this](const StoragePtr& storage) {
    if (storage->last_write) state_->order_after(storage->last_write);
    static_cast<CudaStorage&>(*storage).used_on(state_);
  };
  for (const StoragePtr& storage : uses.reads) order_after_write(storage);
  for (const StoragePtr& storage : uses.writes) order_after_write(storage);
}

void CudaStream::after(const StorageUses& uses) {
  state_->device().check_work(cudaGetLastError(), state_->last_operation);
  const EventPtr event = std::make_shared<OperationEvent>(state_);
  for (const StoragePtr& storage : uses.writes) storage->last_write = event;
  if (capture_) capture_->add(uses);
}

std::unique_ptr<Graph> CudaStream::capture(FunctionRef<void()> enqueue_work) {
  WG_CHECK(!capture_, ErrorCode::kUnsupported, "capture: the stream is being captured already");
  const DeviceGuard guard(state_->device().index());
  Capture capture(*state_);
  capture_ = std::make_unique<CaptureRecord>(state_);
  try {
    enqueue_work();
  } catch (...) {
    capture_.reset();
    throw;
  }
  std::unique_ptr<CaptureRecord> record = std::move(capture_);
  return std::make_unique<CudaGraph>(capture.end(), state_, std::move(record));
}

}  // namespace warpgrad::cuda
