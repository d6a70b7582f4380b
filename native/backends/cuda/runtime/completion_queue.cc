#include "backends/cuda/runtime/completion_queue.h"

#include <utility>

#include "backends/cuda/runtime/stream.h"
#include "core/check.h"

namespace warpgrad::cuda {

CompletionQueue::CompletionQueue(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

CompletionQueue::~CompletionQueue() {
  if (thread_.joinable()) thread_.join();
}

void CompletionQueue::push(Item item) {
  std::lock_guard lock(mutex_);
  WG_CHECK(!closed_, ErrorCode::kCancelled, "the stream was closed");
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  queue_.push_back(std::move(item));
  ++pending_;
  work_.notify_one();
}

void CompletionQueue::drain() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return pending_ == 0 || closed_; });
}

std::exception_ptr CompletionQueue::take_failure() {
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

void CompletionQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  if (!thread_.joinable()) finished_ = true;
  work_.notify_one();
}

void CompletionQueue::drop() {
  std::deque<Item> dropped;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(queue_);
  }
  work_.notify_one();
  progress_.notify_all();
}

void CompletionQueue::join() {
  if (thread_.joinable()) thread_.join();
}

bool CompletionQueue::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}

void CompletionQueue::run() {
  cudaSetDevice(device_->index());
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) {
        finished_ = true;
        return;
      }
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    run_item(item);
    std::function<void(std::exception_ptr)> report = std::move(item.report);
    // Taken before anybody who blocks on this item goes on and could take it instead.
    const std::exception_ptr failure = report ? take_failure() : nullptr;
    item = Item();
    {
      std::lock_guard lock(mutex_);
      --pending_;
    }
    progress_.notify_all();
    if (report) report(failure);
  }
}

void CompletionQueue::run_item(Item& item) {
  try {
    if (item.event) item.event->synchronize();
    if (item.work) item.work();
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

}  // namespace warpgrad::cuda
