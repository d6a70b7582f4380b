#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "backends/cuda/runtime/arena.h"
#include "backends/cuda/runtime/completion_queue.h"
#include "backends/cuda/runtime/device.h"
#include "core/stream.h"

namespace warpgrad::cuda {

struct CaptureRecord;
class CudaStorage;
struct OperationCaches;

// Makes `second` run after everything enqueued on `first`, a stream of the current device, so far.
void order(cudaStream_t first, cudaStream_t second);

// A CUDA stream and what outlives its handle in JavaScript: storages are freed on it, events refer to it.
class StreamState {
 public:
  // `memory_for_any_stream`: see Arena.
  explicit StreamState(std::shared_ptr<CudaDevice> device, bool memory_for_any_stream = false);
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  CudaDevice& device() const { return *device_; }
  const std::shared_ptr<CudaDevice>& shared_device() const { return device_; }
  cudaStream_t handle() const { return handle_.get(); }
  Arena& arena() { return arena_; }

  // Makes `waiter`, of any device, run after everything enqueued here so far.
  void order_before(cudaStream_t waiter) const;
  // Later work here starts after an event of any stream. Blocks for one that another thread sets: the device never
  // waits for a thread (see Staging).
  void order_after(const EventPtr& event);
  // The same after all work that uses the storage so far, on any stream.
  void order_after_uses(CudaStorage& storage);

  // The latest work, for messages. Of the thread that enqueues, like what follows; others may ask for capturing().
  const char* last_operation = "an operation";

  bool capturing() const { return capturing_.load(std::memory_order_relaxed); }
  void set_capturing(bool capturing) { capturing_.store(capturing, std::memory_order_relaxed); }
  // Throws Error(kUnsupported): `what` would wait for a capture, or end up in it.
  void expect_not_capturing(const char* what) const;

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  cudaStream_t create() const;

  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CUstream_st, Destroy> handle_;
  Arena arena_;
  std::atomic<bool> capturing_{false};
};

// A position that a CUDA event marks, with a time.
class CudaEvent : public Event {
 public:
  // Errors name the stream's last operation: CUDA reports a fault only at some later call.
  explicit CudaEvent(std::shared_ptr<StreamState> stream);
  ~CudaEvent() override;
  bool reached() const override;
  void synchronize() const override;
  double milliseconds_since(const Event& earlier) const override;
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
  explicit OperationEvent(std::shared_ptr<StreamState> stream)
      : stream_(std::move(stream)), operation_(stream_->last_operation) {}
  bool reached() const override;
  void synchronize() const override;
  double milliseconds_since(const Event& earlier) const override;
  const StreamState& stream() const { return *stream_; }

 private:
  std::shared_ptr<StreamState> stream_;
  const char* operation_;
};

class CudaStream : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaDevice> device);
  ~CudaStream() override;

  Device device() const override { return {DeviceType::kCuda, state_->device().index()}; }
  uint64_t native_handle() const override { return reinterpret_cast<uintptr_t>(state_->handle()); }
  EventPtr record() override;
  void wait(EventPtr event) override;
  void synchronize() override;
  void notify(std::function<void(std::exception_ptr)> done) override;
  std::unique_ptr<Graph> capture(FunctionRef<void()> enqueue_work) override;

  const std::shared_ptr<StreamState>& state() const { return state_; }
  const std::shared_ptr<CompletionQueue>& completion() const { return completion_; }
  cudaStream_t handle() const { return state_->handle(); }

  // Where memory for work on this stream comes from: in a capture, the graph's.
  std::shared_ptr<Arena> arena() const;

  // Orders this stream after the pending writes of what an operation uses; then, once it was enqueued, notes its own.
  void before(const char* operation, const StorageUses& uses);
  void after(const StorageUses& uses);
  // Runs `work` on the completion thread, after earlier items of it.
  void run_on_completion_thread(std::function<void()> work);
  // The same, once everything enqueued so far is done.
  void when_reached(std::function<void()> work);

  // Plans that the backend keeps for operations on this stream.
  std::shared_ptr<OperationCaches> caches;

 private:
  std::shared_ptr<StreamState> state_;
  std::shared_ptr<CompletionQueue> completion_;
  std::unique_ptr<CaptureRecord> capture_;  // while capturing
};

}  // namespace warpgrad::cuda
