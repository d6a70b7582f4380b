#pragma once

#include <napi.h>

#include <memory>

#include "core/stream.h"
#include "ops/backend.h"

namespace warpgrad::binding {

// The native half of a Stream. `new NativeStream(isCuda, deviceIndex)`.
class StreamHandle : public Napi::ObjectWrap<StreamHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit StreamHandle(const Napi::CallbackInfo& info);

  Stream& stream() { return *stream_; }
  ops::Backend& backend() { return *backend_; }
  static StreamHandle& from(const Napi::Value& value) { return *Unwrap(value.As<Napi::Object>()); }

 private:
  Napi::Value synchronize(const Napi::CallbackInfo& info);
  Napi::Value synchronize_sync(const Napi::CallbackInfo& info);
  Napi::Value record(const Napi::CallbackInfo& info);
  Napi::Value wait(const Napi::CallbackInfo& info);
  Napi::Value handle(const Napi::CallbackInfo& info);

  ops::Backend* backend_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

// The native half of an Event; made by NativeStream.record().
class EventHandle : public Napi::ObjectWrap<EventHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit EventHandle(const Napi::CallbackInfo& info) : ObjectWrap(info) {}

  EventPtr event;

 private:
  Napi::Value reached(const Napi::CallbackInfo& info);
};

}  // namespace warpgrad::binding
