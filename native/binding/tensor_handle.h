#pragma once

#include <napi.h>

#include "core/storage.h"
#include "core/tensor_view.h"

namespace warpgrad::binding {

class Environment;
class StreamHandle;

enum class FreedBy { kDispose, kCollector };

// The native half of a Tensor: a view and a share in its storage. For JavaScript it is an opaque external value, passed
// to the functions below: an object with methods would cost twice as much to make and three times as much to unwrap.
//
// The external holds the handle's number in the environment's table, not its address, so that no value that JavaScript
// could pass reaches memory that is not a handle's.
class TensorHandle {
 public:
  const TensorView& view() const { return view_; }
  const StoragePtr& storage() const { return storage_; }
  bool holds_storage() const { return storage_ != nullptr; }

  void set(Environment& environment, const TensorView& view, StoragePtr storage);
  // Takes memory for the elements of a contiguous layout, which the stream's work is to write.
  void allocate(Environment& environment, Napi::Env env, StreamHandle& stream, TensorView layout);
  void release(Environment& environment, FreedBy by);

  napi_ref external = nullptr;  // weak; null while the handle is in no use

 private:
  StoragePtr storage_;
  TensorView view_;
};

// The dtype of a code as in lib/dtype.ts.
DType read_dtype(const Napi::Value& value);

// tensorAllocate, tensorAdopt, tensorView, tensorRelease, ...: typed in lib/native.ts.
void define_tensors(Napi::Env env, Napi::Object exports);

}  // namespace warpgrad::binding
