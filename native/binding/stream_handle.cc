#include "binding/stream_handle.h"

#include "binding/environment.h"

namespace warpgrad::binding {

Napi::Function StreamHandle::define(Napi::Env env) {
  return DefineClass(
      env, "NativeStream",
      {InstanceMethod<&StreamHandle::synchronize>("synchronize"),
       InstanceMethod<&StreamHandle::synchronize_sync>("synchronizeSync"),
       InstanceMethod<&StreamHandle::record>("record"), InstanceMethod<&StreamHandle::wait>("wait"),
       InstanceMethod<&StreamHandle::handle>("handle"), InstanceMethod<&StreamHandle::capture>("capture")});
}

StreamHandle::StreamHandle(const Napi::CallbackInfo& info)
    : ObjectWrap(info), environment_(Environment::of(info.Env())) {
  guarded(info, [&]() -> Napi::Value {
    const Device device{info[0].As<Napi::Boolean>() ? DeviceType::kCuda : DeviceType::kCpu,
                        info[1].As<Napi::Number>().Int32Value()};
    backend_ = &Environment::of(info.Env()).registry().backend(device);
    stream_ = backend_->create_stream();
    environment_.live_streams.insert(this);
    return info.Env().Undefined();
  });
}

ops::Backend& StreamHandle::backend_of(const Storage& storage) {
  WG_CHECK(storage.device() == stream_->device(), ErrorCode::kInternal, "the tensor and the stream are on two devices");
  return *backend_;
}

Napi::Value StreamHandle::synchronize(const Napi::CallbackInfo& info) {
  return guarded(info,
                 [&] { return Environment::of(info.Env()).when_done(info.Env(), *stream_, info.Env().Undefined()); });
}

Napi::Value StreamHandle::synchronize_sync(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    stream_->synchronize();
    return info.Env().Undefined();
  });
}

Napi::Value StreamHandle::record(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object handle = Environment::of(info.Env()).event_constructor.New({});
    EventHandle::Unwrap(handle)->event = stream_->record();
    return handle;
  });
}

Napi::Value StreamHandle::wait(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const EventPtr& event = unwrap<EventHandle>(info[0]).event;
    WG_CHECK(event != nullptr, ErrorCode::kInternal, "the event was never recorded");
    stream_->wait(event);
    return info.Env().Undefined();
  });
}

Napi::Value StreamHandle::handle(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), stream_->native_handle());
}

// capture(enqueueWork): a NativeGraph of what the function enqueues on this stream.
Napi::Value StreamHandle::capture(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Function enqueue_work = info[0].As<Napi::Function>();
    std::unique_ptr<Graph> graph = stream_->capture([&] { enqueue_work.Call({}); });
    const Napi::Object handle = environment_.graph_constructor.New({});
    GraphHandle::Unwrap(handle)->graph = std::move(graph);
    return handle;
  });
}

Napi::Function EventHandle::define(Napi::Env env) {
  return DefineClass(env, "NativeEvent",
                     {InstanceMethod<&EventHandle::reached>("reached"),
                      InstanceMethod<&EventHandle::milliseconds_since>("millisecondsSince")});
}

// millisecondsSince(earlier): both are reached.
Napi::Value EventHandle::milliseconds_since(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const EventPtr& earlier = unwrap<EventHandle>(info[0]).event;
    WG_CHECK(event && earlier && event->reached() && earlier->reached(), ErrorCode::kInternal,
             "the time between events is known once both are reached");
    return Napi::Number::New(info.Env(), event->milliseconds_since(*earlier));
  });
}

Napi::Value EventHandle::reached(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), event == nullptr || event->reached());
}

Napi::Function GraphHandle::define(Napi::Env env) {
  return DefineClass(
      env, "NativeGraph",
      {InstanceMethod<&GraphHandle::replay>("replay"), InstanceMethod<&GraphHandle::release>("release")});
}

Napi::Value GraphHandle::replay(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    WG_CHECK(graph != nullptr, ErrorCode::kInternal, "the graph was released");
    graph->replay();
    return info.Env().Undefined();
  });
}

Napi::Value GraphHandle::release(const Napi::CallbackInfo& info) {
  graph.reset();
  return info.Env().Undefined();
}

}  // namespace warpgrad::binding
