#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>

#include "binding/tensor_table.h"
#include "core/function_ref.h"
#include "ops/registry.h"

namespace warpgrad::binding {

// Everything that belongs to one JavaScript environment (the main thread or a worker thread). There are no statics: an
// addon is loaded once a process but initialised once an environment.
class Environment {
 public:
  explicit Environment(Napi::Env env);
  static Environment& of(Napi::Env env) { return *env.GetInstanceData<Environment>(); }

  // Made by initialize() before anything else is called.
  void initialize(int cpu_threads, const std::string& cpu_isa);
  ops::Registry& registry();

  // A promise settled on this thread once `stream` has done all work enqueued so far: rejected with the first failure
  // since the last report, else resolved with `value` (an object or undefined), which is kept alive until then.
  Napi::Promise when_done(Napi::Env env, Stream& stream, Napi::Value value);
  // Keeps a JavaScript object alive as long as the result, which any thread may let go. Null for undefined.
  std::shared_ptr<void> hold(const Napi::Value& value);

  Napi::FunctionReference stream_constructor;
  Napi::FunctionReference event_constructor;
  Napi::FunctionReference graph_constructor;

  // Where JavaScript puts the shape of a tensor, and behind it the strides, before a call that takes them: an array
  // would be read element by element, which costs as much as all else of an allocation.
  double sizes[2 * kMaxRank] = {};

  TensorTable tensors;
  // Every other handle made here and not yet destroyed: what unwrap() accepts.
  std::unordered_set<const void*> live_streams, live_events, live_graphs;

  // Called before `bytes` are allocated. Node runs finalizers only when the event loop turns; a synchronous loop of
  // operations would grow without bound, so handles that the collector took are released here once enough was
  // allocated.
  void before_allocation(Napi::Env env, size_t bytes);
  // Note what the storages of tensors weigh; the collector is told at the next allocation. What was disposed stays
  // reported for the tensors that come after it: a report of much new memory makes the collector run, in vain where
  // every call disposes what the one before made. What no tensor has taken over for a while is taken back.
  void note_allocated(size_t bytes);
  void note_freed(size_t bytes, FreedBy by);

 private:
  using Task = std::function<void(Napi::Env)>;
  static void run_task(Napi::Env env, Napi::Function, Environment*, Task* task);
  using Mailbox = Napi::TypedThreadSafeFunction<Environment, Task, &Environment::run_task>;
  // Runs `task` on this thread; drops it when the environment has ended.
  void post(Task task);

  const std::thread::id thread_ = std::this_thread::get_id();
  std::unique_ptr<ops::Registry> registry_;
  Mailbox mailbox_;
  bool ended_ = false;
  int pending_promises_ = 0;
  size_t bytes_since_sweep_ = 0;
  size_t allocations_since_sweep_ = 0;
  int64_t unreported_bytes_ = 0;
  int64_t spare_bytes_ = 0;        // reported, but disposed
  int64_t least_spare_bytes_ = 0;  // since it was settled last
  size_t allocations_since_settled_ = 0;
};

// Runs `body`, turning C++ exceptions into JavaScript ones with a code.
Napi::Value guarded(const Napi::CallbackInfo& info, FunctionRef<Napi::Value()> body);
Napi::Error to_js_error(Napi::Env env, std::exception_ptr failure);

}  // namespace warpgrad::binding
