#pragma once

#include <napi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "ops/registry.h"

namespace warpgrad::binding {

class TensorHandle;

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

  Napi::FunctionReference tensor_constructor;
  Napi::FunctionReference stream_constructor;
  Napi::FunctionReference event_constructor;

  // Every handle made here and not yet destroyed: what unwrap() accepts.
  std::unordered_set<const void*> live_tensors, live_streams, live_events;

  // Tensor handles register here too, so that sweep() can find those whose JavaScript object the collector took.
  void add(TensorHandle* handle);
  void remove(TensorHandle* handle);
  // Called before `bytes` are allocated. Node runs finalizers only when the event loop turns; a synchronous loop of
  // operations would grow without bound, so handles whose object is gone are released here once enough was allocated.
  void before_allocation(Napi::Env env, size_t bytes);

 private:
  struct Settlement;
  static void settle(Napi::Env env, Napi::Function, Environment* self, Settlement* settlement);
  using Settler = Napi::TypedThreadSafeFunction<Environment, Settlement, &Environment::settle>;
  void sweep(Napi::Env env);

  std::unique_ptr<ops::Registry> registry_;
  Settler settler_;
  int pending_settlements_ = 0;
  TensorHandle* first_handle_ = nullptr;
  size_t bytes_since_sweep_ = 0;
  size_t allocations_since_sweep_ = 0;
};

// Runs `body`, turning C++ exceptions into JavaScript ones with a code.
Napi::Value guarded(const Napi::CallbackInfo& info, const std::function<Napi::Value()>& body);
Napi::Error to_js_error(Napi::Env env, std::exception_ptr failure);

}  // namespace warpgrad::binding
