#pragma once

#include <napi.h>

#include <memory>

#include "binding/environment.h"
#include "core/storage.h"
#include "core/tensor_view.h"

namespace warpgrad::binding {

// What the collector is told that one storage weighs, for as long as some handle refers to it. JavaScript thread only.
class ExternalMemory {
 public:
  ExternalMemory(Napi::Env env, size_t bytes);
  ~ExternalMemory();

 private:
  Napi::Env env_;
  int64_t bytes_;
};

// The native half of a Tensor: a view and a share in its storage. `new NativeTensor(stream, dtype, shape, zeroed)`.
class TensorHandle : public Napi::ObjectWrap<TensorHandle> {
 public:
  static constexpr const char* kName = "NativeTensor";
  static constexpr auto kLive = &Environment::live_tensors;
  static Napi::Function define(Napi::Env env);
  explicit TensorHandle(const Napi::CallbackInfo& info);
  ~TensorHandle() override;

  const TensorView& view() const { return view_; }
  const StoragePtr& storage() const { return storage_; }
  bool collected() const { return Value().IsEmpty(); }
  void release(Napi::Env env);

  TensorHandle* next = nullptr;  // the environment's list of handles
  TensorHandle* previous = nullptr;

 private:
  void allocate(const Napi::CallbackInfo& info);
  Napi::Value release_js(const Napi::CallbackInfo& info);
  Napi::Value make_view(const Napi::CallbackInfo& info);
  Napi::Value address(const Napi::CallbackInfo& info);
  Napi::Value write(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  Napi::Value read_sync(const Napi::CallbackInfo& info);
  Napi::Value copy_from(const Napi::CallbackInfo& info);
  // Enqueues the copy to a fresh ArrayBuffer and gives that.
  Napi::ArrayBuffer enqueue_read(const Napi::CallbackInfo& info, Stream& stream);

  Environment& environment_;
  StoragePtr storage_;
  std::shared_ptr<ExternalMemory> external_memory_;
  TensorView view_;
};

}  // namespace warpgrad::binding
