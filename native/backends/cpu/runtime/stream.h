#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/cpu/runtime/exec_context.h"
#include "backends/cpu/runtime/stream_runners.h"
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
  std::shared_ptr<StreamRunners> runners = std::make_shared<StreamRunners>();
};

class StreamState;

// A FIFO queue of operations, which one of the runners runs with the pool's help. The destructor lets queued work
// finish without waiting for it.
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

// What a stream shares with its runner and its events.
class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  StreamState(std::shared_ptr<const Engine> engine, std::shared_ptr<CancelFlag> cancel)
      : engine_(std::move(engine)), cancel_(std::move(cancel)) {}

  struct Item {
    const char* name = nullptr;
    StorageUses uses;
    CpuStream::Operation operation;  // null: only wait, note the time or report
    std::vector<EventPtr> waits;
    std::shared_ptr<Clock::time_point> time;
    std::function<void(std::exception_ptr)> report;
  };

  EventPtr push(Item item);  // the event of its end, which uses.writes get as their last one
  void close();              // nothing more is pushed
  void drop();               // closes, and forgets what is queued; `cancel` is set already
  bool finished() const;     // closed, and all work is done
  EventPtr position();       // the end of the queue
  void block_until(uint64_t ticket) const;
  std::exception_ptr take_failure();
  uint64_t enqueued() const { return enqueued_.load(std::memory_order_relaxed); }
  bool reached(uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }

  // For the runners. Does what is queued; returns when nothing is left, or when another stream is to be waited for,
  // which then has this one run again.
  void run();

 private:
  struct Waiter {
    uint64_t ticket;
    std::shared_ptr<StreamState> stream;
  };

  void spin_for_work() const;
  bool take_next();
  bool waits_are_over();
  bool add_waiter(uint64_t ticket, std::shared_ptr<StreamState> stream);
  void finish_current();
  void run_item(Item& item);

  std::shared_ptr<const Engine> engine_;
  std::shared_ptr<CancelFlag> cancel_;
  mutable std::mutex mutex_;  // taken before the runners', never before another stream's
  std::condition_variable space_;
  mutable std::condition_variable progress_;
  std::deque<Item> queue_;
  std::vector<Waiter> waiters_;  // streams to run again once this one has got so far
  std::optional<Item> current_;  // only its runner touches it
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::exception_ptr failure_;  // the first since the last report
  bool closed_ = false;
  bool active_ = false;  // has a runner, or waits for one or for another stream
};

}  // namespace warpgrad::cpu
