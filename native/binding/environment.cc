#include "binding/environment.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "binding/tensor_handle.h"
#include "core/check.h"

namespace warpgrad::binding {

namespace {

constexpr size_t kSweepBytes = size_t{32} << 20;
constexpr size_t kSweepAllocations = 4096;

const char* code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "ERR_OUT_OF_RANGE";
    case ErrorCode::kUnsupported: return "ERR_WARPGRAD_UNSUPPORTED";
    case ErrorCode::kOutOfMemory: return "ERR_WARPGRAD_OUT_OF_MEMORY";
    case ErrorCode::kDeviceFailure: return "ERR_WARPGRAD_DEVICE_FAILURE";
    case ErrorCode::kCancelled: return "ERR_WARPGRAD_CANCELLED";
    case ErrorCode::kInternal: return "ERR_WARPGRAD_INTERNAL";
  }
  return "ERR_WARPGRAD_INTERNAL";
}

Napi::Error make_error(Napi::Env env, ErrorCode code, const std::string& message) {
  Napi::Error error = Napi::Error::New(env, message);
  if (code == ErrorCode::kInvalidArgument) error = Napi::RangeError::New(env, message);
  error.Set("code", Napi::String::New(env, code_name(code)));
  return error;
}

}  // namespace

struct Environment::Settlement {
  Napi::Promise::Deferred deferred;
  Napi::ObjectReference value;  // empty for undefined
  std::exception_ptr failure;
};

Environment::Environment(Napi::Env env) {
  settler_ = Settler::New(env, "warpgrad", 0, 1, this);
  settler_.Unref(env);  // only a pending promise keeps the process alive
  // Registered after the thread-safe function, hence run before its own clean-up: no thread is left that could call it.
  env.AddCleanupHook([this] {
    if (registry_) registry_->shut_down();
    settler_.Abort();
  });
}

void Environment::initialize(int cpu_threads, const std::string& cpu_isa) {
  if (registry_) return;  // the JavaScript side was loaded again in the same environment
  registry_ = std::make_unique<ops::Registry>(cpu_threads, cpu_isa);
}

ops::Registry& Environment::registry() {
  WG_CHECK(registry_ != nullptr, ErrorCode::kInternal, "initialize() was not called");
  return *registry_;
}

Napi::Promise Environment::when_done(Napi::Env env, Stream& stream, Napi::Value value) {
  // Owned by the queue until the report, then by settle(). An environment that ends first leaks it on purpose: its
  // references can't be deleted any more.
  auto* settlement = new Settlement{
      Napi::Promise::Deferred::New(env),
      value.IsUndefined() ? Napi::ObjectReference() : Napi::Persistent(value.As<Napi::Object>()), nullptr};
  const Napi::Promise promise = settlement->deferred.Promise();
  if (pending_settlements_++ == 0) settler_.Ref(env);
  stream.notify([this, settlement](std::exception_ptr failure) {
    settlement->failure = failure;
    settler_.NonBlockingCall(settlement);
  });
  return promise;
}

void Environment::settle(Napi::Env env, Napi::Function, Environment* self, Settlement* settlement) {
  if (env == nullptr) return;  // the environment is gone, and with it whoever awaited
  const std::unique_ptr<Settlement> owned(settlement);
  if (--self->pending_settlements_ == 0) self->settler_.Unref(env);
  if (owned->failure) {
    owned->deferred.Reject(to_js_error(env, owned->failure).Value());
  } else {
    owned->deferred.Resolve(owned->value.IsEmpty() ? env.Undefined() : owned->value.Value());
  }
}

void Environment::add(TensorHandle* handle) {
  live_tensors.insert(handle);
  handle->next = first_handle_;
  handle->previous = nullptr;
  if (first_handle_) first_handle_->previous = handle;
  first_handle_ = handle;
}

void Environment::remove(TensorHandle* handle) {
  live_tensors.erase(handle);
  if (handle->previous) handle->previous->next = handle->next;
  if (handle->next) handle->next->previous = handle->previous;
  if (first_handle_ == handle) first_handle_ = handle->next;
}

void Environment::before_allocation(Napi::Env env, size_t bytes) {
  bytes_since_sweep_ += bytes;
  // In proportion to what a sweep has to look at, so that many live tensors don't make allocations slow.
  const size_t allocations = std::max(kSweepAllocations, live_tensors.size() / 2);
  if (++allocations_since_sweep_ < allocations && bytes_since_sweep_ < kSweepBytes) return;
  bytes_since_sweep_ = 0;
  allocations_since_sweep_ = 0;
  sweep(env);
}

void Environment::sweep(Napi::Env env) {
  TensorHandle* handle = first_handle_;
  while (handle) {
    const Napi::HandleScope scope(env);
    TensorHandle* next = handle->next;
    if (handle->collected()) handle->release(env);
    handle = next;
  }
}

Napi::Value guarded(const Napi::CallbackInfo& info, const std::function<Napi::Value()>& body) {
  try {
    return body();
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw to_js_error(info.Env(), std::current_exception());
  }
}

Napi::Error to_js_error(Napi::Env env, std::exception_ptr failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return make_error(env, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return make_error(env, ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::system_error& error) {
    return make_error(env, ErrorCode::kOutOfMemory, concat("can't start a thread: ", error.what()));
  } catch (const std::exception& error) {
    return make_error(env, ErrorCode::kInternal, error.what());
  } catch (...) {
    return make_error(env, ErrorCode::kInternal, "an unknown exception");
  }
}

}  // namespace warpgrad::binding
