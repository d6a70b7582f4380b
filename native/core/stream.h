#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "core/device.h"
#include "core/function_ref.h"

namespace warpgrad {

// A position in a stream: reached once all work enqueued before it has finished.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() const = 0;
  virtual void synchronize() const = 0;  // blocks the calling thread
  // Between two events that Stream::record() gave on one device, both reached.
  virtual double milliseconds_since(const Event& earlier) const = 0;
};
using EventPtr = std::shared_ptr<const Event>;

// Operations that were captured from a stream, to be run again on it as one.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void replay() = 0;  // enqueues and returns
};

// Runs the operations enqueued on it in order. Enqueueing and waiting are done by one thread, its owner.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device device() const = 0;
  virtual uint64_t native_handle() const = 0;  // the driver's, for other libraries; 0 where there is none
  virtual EventPtr record() = 0;
  virtual void wait(EventPtr event) = 0;  // later work starts after the event; does not block the caller
  virtual void synchronize() = 0;         // blocks; throws the first failure since the last report
  // Calls `done` on another thread once all work enqueued so far has finished, with the first failure since the
  // last report, or null.
  virtual void notify(std::function<void(std::exception_ptr)> done) = 0;
  // Records what `enqueue_work` enqueues here instead of running it. An exception of it ends the capture and is passed
  // on.
  virtual std::unique_ptr<Graph> capture(FunctionRef<void()> enqueue_work) = 0;
};

}  // namespace warpgrad
