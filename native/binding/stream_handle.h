#pragma once

#include <napi.h>

#include <memory>

#include "binding/unwrap.h"
#include "core/stream.h"
#include "ops/backend.h"

namespace warpgrad::binding {

// The native half of a Stream. `new NativeStream(isCuda, deviceIndex)`.
class StreamHandle : public Napi::ObjectWrap<StreamHandle> {
 public:
  static constexpr const char* kName = "NativeStream";
  static constexpr auto kLive = &Environment::live_streams;
  static Napi::Function define(Napi::Env env);
  explicit StreamHandle(const Napi::CallbackInfo& info);
  ~StreamHandle() override { environment_.live_streams.erase(this); }

  Stream& stream() { return *stream_; }
  ops::Backend& backend() { return *backend_; }
  // The same, for work on a storage: refuses one of another device.
  ops::Backend& backend_of(const Storage& storage);
  static StreamHandle& from(const Napi::Value& value) { return unwrap<StreamHandle>(value); }

 private:
  Napi::Value synchronize(const Napi::CallbackInfo& info);
  Napi::Value synchronize_sync(const Napi::CallbackInfo& info);
  Napi::Value record(const Napi::CallbackInfo& info);
  Napi::Value wait(const Napi::CallbackInfo& info);
  Napi::Value handle(const Napi::CallbackInfo& info);
  Napi::Value capture(const Napi::CallbackInfo& info);

  Environment& environment_;
  ops::Backend* backend_ = nullptr;
  std::unique_ptr<Stream> stream_;
};

// The native half of an Event; made by NativeStream.record().
class EventHandle : public Napi::ObjectWrap<EventHandle> {
 public:
  static constexpr const char* kName = "NativeEvent";
  static constexpr auto kLive = &Environment::live_events;
  static Napi::Function define(Napi::Env env);
  explicit EventHandle(const Napi::CallbackInfo& info) : ObjectWrap(info), environment_(Environment::of(info.Env())) {
    environment_.live_events.insert(this);
  }
  ~EventHandle() override { environment_.live_events.erase(this); }

  EventPtr event;

 private:
  Napi::Value reached(const Napi::CallbackInfo& info);
  Napi::Value milliseconds_since(const Napi::CallbackInfo& info);

  Environment& environment_;
};

// The native half of a Graph; made by NativeStream.capture().
class GraphHandle : public Napi::ObjectWrap<GraphHandle> {
 public:
  static constexpr const char* kName = "NativeGraph";
  static constexpr auto kLive = &Environment::live_graphs;
  static Napi::Function define(Napi::Env env);
  explicit GraphHandle(const Napi::CallbackInfo& info) : ObjectWrap(info), environment_(Environment::of(info.Env())) {
    environment_.live_graphs.insert(this);
  }
  ~GraphHandle() override { environment_.live_graphs.erase(this); }

  std::unique_ptr<Graph> graph;

 private:
  Napi::Value replay(const Napi::CallbackInfo& info);
  Napi::Value release(const Napi::CallbackInfo& info);

  Environment& environment_;
};

}  // namespace warpgrad::binding
