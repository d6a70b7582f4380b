#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "core/function_ref.h"

namespace warpgrad::cpu {

// A flag that stops work early: tasks not yet started are skipped. Set once.
class CancelFlag {
 public:
  void set() { set_.store(true, std::memory_order_relaxed); }
  bool is_set() const { return set_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> set_{false};
};

// Worker threads shared by the streams of one environment. The thread that calls parallel_for works too, so a pool of
// `num_threads` owns one thread fewer, and parallel_for makes progress even when all others are busy elsewhere.
class ThreadPool {
 public:
  using Task = FunctionRef<void(int64_t task, int worker)>;

  explicit ThreadPool(int num_threads);
  ~ThreadPool();  // no parallel_for may be running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(task, worker) for each task in [0, num_tasks), with worker in [0, num_threads()) distinct among the
  // calls in progress. Tasks are claimed in ascending order, each by a thread that runs it at once: a task may wait for
  // an earlier one (and must stop waiting when Job::stopped() turns true). Rethrows the first exception of a task.
  // Throws Error(kCancelled) if `cancel` was set before all tasks had run.
  void parallel_for(int64_t num_tasks, const CancelFlag& cancel, std::atomic<bool>& stopped, Task body);

 private:
  struct Job;
  void work();
  void end();
  static void run_tasks(Job& job, int worker);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Job*> jobs_;  // with tasks left to claim
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace warpgrad::cpu
