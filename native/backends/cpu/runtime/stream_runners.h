#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace warpgrad::cpu {

class StreamState;

// More streams with work take turns.
constexpr size_t kMostRunners = 64;

// Threads that run what streams have queued. A stream takes one only while it has work that needn't wait for another
// stream; a thread is started when a stream finds none idle.
class StreamRunners {
 public:
  StreamRunners() { threads_.reserve(kMostRunners); }
  ~StreamRunners() { end(); }

  // Calls stream->run() on one of the threads. Throws std::system_error if there is none and none can be started.
  void run(std::shared_ptr<StreamState> stream);
  // Forgets the streams that wait for a thread, and waits for those that have one.
  void end();

 private:
  void start_thread();
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<StreamState>> ready_;
  size_t num_idle_ = 0;  // threads that wait for a stream
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace warpgrad::cpu
