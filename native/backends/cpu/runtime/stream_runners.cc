#include "backends/cpu/runtime/stream_runners.h"

#include <system_error>
#include <utility>

#include "backends/cpu/runtime/stream.h"

namespace warpgrad::cpu {

void StreamRunners::run(std::shared_ptr<StreamState> stream) {
  {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    if (num_idle_ <= ready_.size() && threads_.size() < kMostRunners) start_thread();
    ready_.push_back(std::move(stream));
  }
  wake_.notify_one();
}

void StreamRunners::start_thread() {
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // else the stream takes its turn
  }
}

void StreamRunners::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++num_idle_;
    wake_.wait(lock, [this] { return ending_ || !ready_.empty(); });
    --num_idle_;
    if (ending_) return;
    std::shared_ptr<StreamState> stream = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    stream->run();
    stream.reset();
    lock.lock();
  }
}

void StreamRunners::end() {
  std::deque<std::shared_ptr<StreamState>> dropped;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    dropped.swap(ready_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace warpgrad::cpu
