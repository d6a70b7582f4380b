#pragma once

#include <napi.h>

#include <deque>
#include <vector>

#include "binding/tensor_handle.h"

namespace warpgrad::binding {

// The tensor handles of an environment, by number.
class TensorTable {
 public:
  // An external for a handle in no use. Its handle is freed once the collector has taken it.
  Napi::Value add(Environment& environment, Napi::Env env);
  // The handle of an external; anything else is refused.
  TensorHandle& get(const Napi::Value& value);
  // Node runs finalizers only when the event loop turns; this releases what the collector took since.
  void release_collected(Environment& environment, Napi::Env env);
  size_t size() const { return handles_.size() - free_.size(); }

 private:
  static void finalize(napi_env env, void* number, void* environment);
  // Whether the collector may have taken anything since the last time it may have.
  bool collector_has_run(Napi::Env env);

  std::deque<TensorHandle> handles_;
  std::vector<size_t> free_;
  Napi::ObjectReference probe_;  // weak, of an object that nobody else holds
};

}  // namespace warpgrad::binding
