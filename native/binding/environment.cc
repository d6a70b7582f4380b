#include "binding/environment.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"

namespace warpgrad::binding {

namespace {

constexpr size_t kSweepBytes = size_t{32} << 20;
constexpr size_t kSweepAllocations = 4096;

constexpr int64_t kHandleBytes = 512;  // about what the objects around a storage weigh

// The collector starts once 64 MB more are alive outside its heap than after its last run. Between its start and its
// end a loop of operations allocates as much again, so each byte counts twice to keep the sum near 64 MB.
constexpr int64_t kExternalWeight = 2;
constexpr int64_t kReportBytes = int64_t{64} << 10;

int64_t external_weight(size_t bytes) {
  return kExternalWeight * static_cast<int64_t>(bytes) + kHandleBytes;
}

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

Environment::Environment(Napi::Env env) {
  mailbox_ = Mailbox::New(env, "warpgrad", 0, 1, this);
  mailbox_.Unref(env);  // only a pending promise keeps the process alive
  // Registered after the thread-safe function, hence run before its own clean-up: no thread is left that could call it.
  env.AddCleanupHook([this] {
    if (registry_) registry_->shut_down();
    ended_ = true;
    mailbox_.Abort();
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

void Environment::post(Task task) {
  auto* owned = new Task(std::move(task));  // until run_task, or for good: its references die with the environment
  mailbox_.NonBlockingCall(owned);
}

void Environment::run_task(Napi::Env env, Napi::Function, Environment*, Task* task) {
  if (env == nullptr) return;  // the environment is gone, and with it whoever awaited
  const std::unique_ptr<Task> owned(task);
  (*owned)(env);
}

Napi::Promise Environment::when_done(Napi::Env env, Stream& stream, Napi::Value value) {
  const auto deferred = Napi::Promise::Deferred::New(env);
  const auto kept = std::static_pointer_cast<Napi::ObjectReference>(hold(value));
  stream.notify([this, deferred, kept](std::exception_ptr failure) {
    post([this, deferred, kept, failure](Napi::Env env) {
      if (--pending_promises_ == 0) mailbox_.Unref(env);
      if (failure) {
        deferred.Reject(to_js_error(env, failure).Value());
      } else {
        deferred.Resolve(kept ? kept->Value() : env.Undefined());
      }
    });
  });
  if (pending_promises_++ == 0) mailbox_.Ref(env);
  return deferred.Promise();
}

std::shared_ptr<void> Environment::hold(const Napi::Value& value) {
  if (value.IsUndefined()) return nullptr;
  auto* reference = new Napi::ObjectReference(Napi::Persistent(value.As<Napi::Object>()));
  return {reference, [this](void* held) {
            auto* let_go = static_cast<Napi::ObjectReference*>(held);
            if (ended_) return;
            if (std::this_thread::get_id() == thread_) {
              delete let_go;
            } else {
              post([let_go](Napi::Env) { delete let_go; });
            }
          }};
}

void Environment::before_allocation(Napi::Env env, size_t bytes) {
  if (++allocations_since_settled_ >= kSweepAllocations) {
    allocations_since_settled_ = 0;
    unreported_bytes_ -= least_spare_bytes_;
    spare_bytes_ -= least_spare_bytes_;
    least_spare_bytes_ = spare_bytes_;
  }
  if (std::abs(unreported_bytes_) >= kReportBytes) {
    Napi::MemoryManagement::AdjustExternalMemory(env, std::exchange(unreported_bytes_, 0));
  }
  bytes_since_sweep_ += bytes;
  // In proportion to what a sweep has to look at, so that many live tensors don't make allocations slow.
  const size_t allocations = std::max(kSweepAllocations, tensors.size() / 2);
  if (++allocations_since_sweep_ < allocations && bytes_since_sweep_ < kSweepBytes) return;
  bytes_since_sweep_ = 0;
  allocations_since_sweep_ = 0;
  tensors.release_collected(*this, env);
}

void Environment::note_allocated(size_t bytes) {
  const int64_t weight = external_weight(bytes), from_spare = std::min(weight, spare_bytes_);
  unreported_bytes_ += weight - from_spare;
  spare_bytes_ -= from_spare;
  least_spare_bytes_ = std::min(least_spare_bytes_, spare_bytes_);
}

void Environment::note_freed(size_t bytes, FreedBy by) {
  if (by == FreedBy::kCollector) {
    unreported_bytes_ -= external_weight(bytes);
  } else {
    spare_bytes_ += external_weight(bytes);
  }
}

Napi::Value guarded(const Napi::CallbackInfo& info, FunctionRef<Napi::Value()> body) {
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
