#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backends/cuda/runtime/completion_queue.h"
#include "backends/cuda/runtime/device.h"
#include "core/stream.h"

namespace warpgrad::cuda {

// Makes `second` run after everything enqueued on `first` so far.
void order(cudaStream_t first, cudaStream_t second);

// A CUDA stream and what outlives its handle in JavaScript: storages are freed on it, events refer to it.
class StreamState {
 public:
  explicit StreamState(std::shared_ptr<CudaDevice> device);
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  CudaDevice& device() const { return *device_; }
  cudaStream_t handle() const { return handle_; }
  // Makes `waiter` run after everything enqueued here so far.
  void order_before(cudaStream_t waiter) const { order(handle_, waiter); }

 private:
  std::shared_ptr<CudaDevice> device_;
  cudaStream_t handle_ = nullptr;
};

// A position that a CUDA event marks, with a time.
class CudaEvent : public Event {
 public:
  // `operation` names the work before the event in errors: CUDA reports a fault only at some later call.
  CudaEvent(std::shared_ptr<StreamState> stream, const char* operation);
  ~CudaEvent() override;
  bool reached() const override;
  void synchronize() const override;
  cudaEvent_t handle() const { return handle_; }

 private:
  std::shared_ptr<StreamState> stream_;
  const char* operation_;
  cudaEvent_t handle_ = nullptr;
};

// The position right after an operation, without a CUDA event of its own: who waits for it records one at that moment,
// which is later and therefore safe. Keeps events out of launches.
class OperationEvent : public Event {
 public:
  OperationEvent(std::shared_ptr<StreamState> stream, const char* operation)
      : stream_(std::move(stream)), operation_(operation) {}
  bool reached() const override;
  void synchronize() const override;
  const StreamState& stream() const { return *stream_; }

 private:
  std::shared_ptr<StreamState> stream_;
  const char* operation_;
};

class CudaStream : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaDevice> device);
  ~CudaStream() override { completion_->close(); }

  Device device() const override { return {DeviceType::kCuda, state_->device().index()}; }
  uint64_t native_handle() const override { return reinterpret_cast<uintptr_t>(state_->handle()); }
  EventPtr record() override { return std::make_shared<CudaEvent>(state_, last_operation_); }
  void wait(EventPtr event) override;
  void synchronize() override;
  void notify(std::function<void(std::exception_ptr)> done) override;

  const std::shared_ptr<StreamState>& state() const { return state_; }
  const std::shared_ptr<CompletionQueue>& completion() const { return completion_; }
  cudaStream_t handle() const { return state_->handle(); }

  // Orders this stream after the pending writes of what an operation uses; then, once it was enqueued, notes its own.
  void before(const char* operation, const StorageUses& uses);
  void after(const StorageUses& uses);

  // Runs `work` on the completion thread, after earlier items of it.
  void run_on_completion_thread(std::function<void()> work);
  // The same, once everything enqueued so far is done.
  void when_reached(std::function<void()> work);

 private:
  std::shared_ptr<StreamState> state_;
  std::shared_ptr<CompletionQueue> completion_;
  const char* last_operation_ = "an operation";
};

}  // namespace warpgrad::cuda
