#pragma once

#include <condition_variable>
#include <mutex>

#include "core/check.h"
#include "core/stream.h"

namespace warpgrad {

// An event that host code sets: the end of a copy between devices, say.
class HostEvent : public Event {
 public:
  void set() {
    {
      std::lock_guard lock(mutex_);
      set_ = true;
    }
    changed_.notify_all();
  }
  bool reached() const override {
    std::lock_guard lock(mutex_);
    return set_;
  }
  void synchronize() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
  }
  double milliseconds_since(const Event&) const override {
    throw Error(ErrorCode::kInternal, "a host event has no time");
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;
};

}  // namespace warpgrad
