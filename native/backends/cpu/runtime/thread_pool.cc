#include "backends/cpu/runtime/thread_pool.h"

#include <system_error>

#include "core/check.h"

namespace warpgrad::cpu {

struct ThreadPool::Job {
  Job(int64_t num_tasks, const CancelFlag& cancel, std::atomic<bool>& stopped, Task body)
      : num_tasks(num_tasks), cancel(cancel), stopped(stopped), body(body) {}

  const int64_t num_tasks;
  const CancelFlag& cancel;
  std::atomic<bool>& stopped;
  Task body;
  std::atomic<int64_t> next_task{0};
  int num_helpers = 0;     // helpers that ever joined; their worker numbers are 1, 2, ...
  int active_helpers = 0;  // under the pool's mutex, like num_helpers
  std::condition_variable helpers_left;
  std::mutex error_mutex;
  std::exception_ptr error;
};

ThreadPool::ThreadPool(int num_threads) {
  WG_CHECK(num_threads >= 1, ErrorCode::kInvalidArgument, "a thread pool needs at least 1 thread, got ", num_threads);
  threads_.reserve(num_threads - 1);
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    end();
    throw Error(ErrorCode::kOutOfMemory, concat("can't start ", num_threads, " threads: ", error.what()));
  }
}

ThreadPool::~ThreadPool() {
  end();
}

void ThreadPool::end() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_tasks(Job& job, int worker) {
  for (;;) {
    if (job.cancel.is_set()) job.stopped.store(true);
    if (job.stopped.load(std::memory_order_relaxed)) return;
    const int64_t task = job.next_task.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.num_tasks) return;
    try {
      job.body(task, worker);
    } catch (...) {
      std::lock_guard lock(job.error_mutex);
      if (!job.error) job.error = std::current_exception();
      job.stopped.store(true);
    }
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    // The oldest job first: a stream that started earlier should finish earlier.
    Job& job = *jobs_.front();
    const int worker = ++job.num_helpers;
    ++job.active_helpers;
    // Each helper joins a job once, so the list empties even while its last tasks run.
    if (job.num_helpers == static_cast<int>(threads_.size())) jobs_.remove(&job);
    lock.unlock();
    run_tasks(job, worker);
    lock.lock();
    jobs_.remove(&job);
    if (--job.active_helpers == 0) job.helpers_left.notify_all();
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, const CancelFlag& cancel, std::atomic<bool>& stopped, Task body) {
  Job job(num_tasks, cancel, stopped, body);
  const bool shared = num_tasks > 1 && !threads_.empty();
  if (shared) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
    }
    wake_.notify_all();
  }
  run_tasks(job, 0);
  if (shared) {
    std::unique_lock lock(mutex_);
    jobs_.remove(&job);
    job.helpers_left.wait(lock, [&job] { return job.active_helpers == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
  if (stopped.load()) {
    throw Error(ErrorCode::kCancelled, "the environment ended before the operation had finished");
  }
}

}  // namespace warpgrad::cpu
