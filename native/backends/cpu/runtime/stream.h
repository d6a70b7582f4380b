#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cpu/runtime/exec_context.h"
#include "core/storage.h"
#include "core/stream.h"

namespace warpgrad::cpu {

// Operations of a stream that may wait in its queue; a caller that enqueues more waits for the oldest to finish, as a
// CUDA launch does. It bounds the memory that a loop without awaits can hold.
constexpr size_t kMaxQueuedOperations = 1024;

// The threads and the instruction set that all streams of a backend run with.
struct Engine {
  Isa isa;
  std::shared_ptr<ThreadPool> pool;
};

class StreamState;

// A FIFO queue with a thread of its own that runs the operations with the pool's help. The thread starts with the first
// operation. The destructor lets queued work finish without waiting for it.
class CpuStream : public Stream {
 public:
  using Operation = std::function<void(ExecContext&)>;

  CpuStream(std::shared_ptr<const Engine> engine, std::shared_ptr<CancelFlag> cancel);
  ~CpuStream() override;

  Device device() const override { return {DeviceType::kCpu, 0}; }
  uint64_t native_handle() const override { return 0; }
  EventPtr record() override;
  void wait(EventPtr event) override;
  void synchronize() override;
  void notify(std::function<void(std::exception_ptr)> done) override;

  // Runs `operation` after everything enqueued before and after the pending writes of what it reads and writes. A
  // failure is kept for the next report and marks the storages of uses.writes.
  void enqueue(const char* name, StorageUses uses, Operation operation);
  std::unique_ptr<Graph> capture(FunctionRef<void()> enqueue_work) override;

  const std::shared_ptr<StreamState>& state() const { return state_; }

 private:
  std::shared_ptr<StreamState> state_;
};

using Clock = std::chrono::steady_clock;

// What a stream shares with its thread and its events.
class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  StreamState(std::shared_ptr<const Engine> engine, std::shared_ptr<CancelFlag> cancel)
      : engine_(std::move(engine)), cancel_(std::move(cancel)) {}
  ~StreamState();

  struct Item {
    const char* name = nullptr;
    StorageUses uses;
    CpuStream::Operation operation;  // null: only wait, note the time or report
    std::vector<EventPtr> waits;
    std::shared_ptr<Clock::time_point> time;
    std::function<void(std::exception_ptr)> report;
  };

  void start();               // the thread, unless it runs already
  void push(Item item);       // after start()
  void close();               // the thread ends once the queue is empty
  void drop();                // closes, and forgets what is queued; `cancel` is set already
  void join();                // after close or drop: waits for the thread to end
  bool finished() const;      // closed, and the thread has ended its work
  EventPtr position() const;  // the end of the queue
  void block_until(uint64_t ticket) const;
  std::exception_ptr take_failure();
  uint64_t enqueued() const { return enqueued_.load(std::memory_order_relaxed); }
  bool reached(uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }

 private:
  void run();
  void spin_for_work() const;
  void run_item(Item& item);

  std::shared_ptr<const Engine> engine_;
  std::shared_ptr<CancelFlag> cancel_;
  mutable std::mutex mutex_;
  std::condition_variable work_, space_;
  mutable std::condition_variable progress_;
  std::deque<Item> queue_;
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::exception_ptr failure_;  // the first since the last report
  bool closed_ = false;
  bool sleeping_ = false;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace warpgrad::cpu
