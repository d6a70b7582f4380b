#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace warpgrad::cuda {

class CudaEvent;
class CudaDevice;

// A thread that waits for events of one stream, in order, and then acts on the host: it fills pageable memory, which
// would block the JavaScript thread, and reports completion. CUDA's own host callbacks may not call CUDA and don't run
// after a fault. The thread starts with the first item.
class CompletionQueue {
 public:
  struct Item {
    const char* operation = "";
    std::shared_ptr<const CudaEvent> event;          // null: nothing to wait for
    std::function<void()> work;                      // either
    std::function<void(std::exception_ptr)> report;  // or; gets the first failure since the last report
  };

  explicit CompletionQueue(std::shared_ptr<CudaDevice> device);
  ~CompletionQueue();

  void push(Item item);
  void drain();                       // blocks until all items are done
  std::exception_ptr take_failure();  // the first since the last report
  void close();                       // the thread ends once the queue is empty
  void drop();                        // closes, and forgets what is queued
  void join();                        // after close or drop
  bool finished() const;

 private:
  void run();
  void run_item(Item& item);

  std::shared_ptr<CudaDevice> device_;
  mutable std::mutex mutex_;
  std::condition_variable work_, progress_;
  std::deque<Item> queue_;
  size_t pending_ = 0;  // queued or running
  std::exception_ptr failure_;
  bool closed_ = false;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace warpgrad::cuda
