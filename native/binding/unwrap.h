#pragma once

#include <napi.h>

#include "binding/environment.h"
#include "core/check.h"

namespace warpgrad::binding {

// The C++ half of a JavaScript object made by Handle's class; anything else is refused. The engine itself would hand
// out a pointer of the wrong type; its type tags would tell, but cost several microseconds an object.
template <class Handle>
Handle& unwrap(const Napi::Value& value) {
  void* handle = nullptr;
  const bool wrapped = value.IsObject() && napi_unwrap(value.Env(), value, &handle) == napi_ok;
  WG_CHECK(wrapped && (Environment::of(value.Env()).*Handle::kLive).contains(handle), ErrorCode::kInternal,
           "expected a ", Handle::kName);
  return *static_cast<Handle*>(handle);
}

}  // namespace warpgrad::binding
