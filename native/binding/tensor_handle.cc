#include "binding/tensor_handle.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "binding/stream_handle.h"
#include "core/check.h"

namespace warpgrad::binding {

namespace {

constexpr int64_t kHandleBytes = 512;  // about what the objects around a storage weigh

// The collector starts once 64 MB more are alive outside its heap than after its last run. Between its start and its
// end a loop of operations allocates as much again, so each byte counts twice to keep the sum near 64 MB.
constexpr int64_t kExternalWeight = 2;

std::array<int64_t, kMaxRank> read_dims(const Napi::Value& value, int* rank) {
  const Napi::Array array = value.As<Napi::Array>();
  WG_CHECK(array.Length() <= kMaxRank, ErrorCode::kInvalidArgument, "a tensor has ", kMaxRank, " dimensions at most");
  std::array<int64_t, kMaxRank> dims{};
  *rank = static_cast<int>(array.Length());
  for (int i = 0; i < *rank; ++i) dims[i] = array.Get(i).As<Napi::Number>().Int64Value();
  return dims;
}

}  // namespace

ExternalMemory::ExternalMemory(Napi::Env env, size_t bytes)
    : env_(env), bytes_(kExternalWeight * static_cast<int64_t>(bytes) + kHandleBytes) {
  Napi::MemoryManagement::AdjustExternalMemory(env_, bytes_);
}

ExternalMemory::~ExternalMemory() {
  Napi::MemoryManagement::AdjustExternalMemory(env_, -bytes_);
}

Napi::Function TensorHandle::define(Napi::Env env) {
  return DefineClass(
      env, "NativeTensor",
      {InstanceMethod<&TensorHandle::release_js>("release"), InstanceMethod<&TensorHandle::make_view>("view"),
       InstanceMethod<&TensorHandle::address>("address"), InstanceMethod<&TensorHandle::write>("write"),
       InstanceMethod<&TensorHandle::read>("read"), InstanceMethod<&TensorHandle::read_sync>("readSync"),
       InstanceMethod<&TensorHandle::copy_from>("copyFrom")});
}

TensorHandle::TensorHandle(const Napi::CallbackInfo& info)
    : ObjectWrap(info), environment_(Environment::of(info.Env())) {
  environment_.add(this);
  if (info.Length() == 0) return;  // make_view fills it in
  try {
    allocate(info);
  } catch (const Napi::Error&) {
    environment_.remove(this);
    throw;
  } catch (...) {
    environment_.remove(this);
    throw to_js_error(info.Env(), std::current_exception());
  }
}

TensorHandle::~TensorHandle() {
  environment_.remove(this);
}

void TensorHandle::allocate(const Napi::CallbackInfo& info) {
  StreamHandle& stream = StreamHandle::from(info[0]);
  view_.dtype = static_cast<DType>(info[1].As<Napi::Number>().Int32Value());
  view_.shape = read_dims(info[2], &view_.rank);
  view_.set_contiguous_strides();
  const size_t bytes = static_cast<size_t>(view_.num_elems()) * dtype_bytes(view_.dtype);
  environment_.before_allocation(info.Env(), bytes);
  storage_ = stream.backend().allocate(bytes, stream.stream());
  external_memory_ = std::make_shared<ExternalMemory>(info.Env(), bytes);
  view_.data = storage_->data();
  if (info[3].As<Napi::Boolean>()) stream.backend().zero(stream.stream(), storage_);
}

void TensorHandle::release(Napi::Env) {
  storage_.reset();
  external_memory_.reset();
  view_.data = nullptr;
}

Napi::Value TensorHandle::release_js(const Napi::CallbackInfo& info) {
  release(info.Env());
  return info.Env().Undefined();
}

// view(shape, strides, offset): another handle on the same storage; strides and offset in elements of this dtype.
Napi::Value TensorHandle::make_view(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    WG_CHECK(storage_ != nullptr, ErrorCode::kInternal, "the tensor was disposed");
    const Napi::Object object = environment_.tensor_constructor.New({});
    TensorHandle& handle = *Unwrap(object);
    handle.view_.dtype = view_.dtype;
    handle.view_.shape = read_dims(info[0], &handle.view_.rank);
    handle.view_.strides = read_dims(info[1], &handle.view_.rank);
    const int64_t offset = info[2].As<Napi::Number>().Int64Value();
    handle.view_.data = static_cast<char*>(view_.data) + offset * static_cast<int64_t>(dtype_bytes(view_.dtype));
    handle.storage_ = storage_;
    handle.external_memory_ = external_memory_;
    return object;
  });
}

Napi::Value TensorHandle::address(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), static_cast<uint64_t>(reinterpret_cast<uintptr_t>(view_.data)));
}

// write(stream, typedArray): fills this fresh contiguous tensor with the bytes of the array.
Napi::Value TensorHandle::write(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    StreamHandle& stream = StreamHandle::from(info[0]);
    const Napi::TypedArray array = info[1].As<Napi::TypedArray>();
    WG_CHECK(storage_ && array.ByteLength() == storage_->bytes(), ErrorCode::kInternal, "write: the sizes differ");
    const char* host = static_cast<const char*>(array.ArrayBuffer().Data()) + array.ByteOffset();
    stream.backend().write(stream.stream(), storage_, host, array.ByteLength());
    return info.Env().Undefined();
  });
}

Napi::ArrayBuffer TensorHandle::enqueue_read(const Napi::CallbackInfo& info, Stream& stream) {
  WG_CHECK(storage_ != nullptr, ErrorCode::kInternal, "the tensor was disposed");
  const size_t bytes = static_cast<size_t>(view_.num_elems()) * dtype_bytes(view_.dtype);
  // The engine ends the process when it can't allocate; whether it can is asked of the system first.
  const std::unique_ptr<void, void (*)(void*)> probe(std::malloc(bytes + 1), std::free);
  WG_CHECK(probe != nullptr, ErrorCode::kOutOfMemory, "data: can't allocate ", bytes, " bytes for the elements");
  Napi::ArrayBuffer buffer = Napi::ArrayBuffer::New(info.Env(), bytes);
  if (bytes > 0) StreamHandle::from(info[0]).backend().read(stream, buffer.Data(), view_, {{storage_}, {}});
  return buffer;
}

// read(stream): a promise of an ArrayBuffer with the elements in row-major order.
Napi::Value TensorHandle::read(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    Stream& stream = StreamHandle::from(info[0]).stream();
    const Napi::ArrayBuffer buffer = enqueue_read(info, stream);
    return environment_.when_done(info.Env(), stream, buffer);
  });
}

Napi::Value TensorHandle::read_sync(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    Stream& stream = StreamHandle::from(info[0]).stream();
    const Napi::ArrayBuffer buffer = enqueue_read(info, stream);
    stream.synchronize();
    return buffer;
  });
}

// copyFrom(stream, source): this fresh tensor = source, converted to this dtype. Between devices the source is
// contiguous and of the same dtype, and the stream is the GPU's.
Napi::Value TensorHandle::copy_from(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    StreamHandle& stream = StreamHandle::from(info[0]);
    TensorHandle& source = unwrap<TensorHandle>(info[1]);
    WG_CHECK(storage_ && source.storage_, ErrorCode::kInternal, "the tensor was disposed");
    WG_CHECK(view_.rank == source.view_.rank && view_.shape == source.view_.shape, ErrorCode::kInternal,
             "copyFrom: the shapes differ");
    const Device from = source.storage_->device();
    const Device to = storage_->device();
    if (from == to) {
      stream.backend().copy(stream.stream(), view_, source.view_, {{source.storage_}, {storage_}});
      return info.Env().Undefined();
    }
    WG_CHECK(view_.dtype == source.view_.dtype && source.view_.contiguous(), ErrorCode::kInternal,
             "copyFrom: a copy between devices neither converts nor gathers");
    WG_CHECK(from.type == DeviceType::kCpu || to.type == DeviceType::kCpu, ErrorCode::kUnsupported,
             "to: copies between two GPUs go through device 'cpu'");
    if (from.type == DeviceType::kCpu) {
      stream.backend().copy_from_cpu(stream.stream(), storage_, source.view_, source.storage_);
    } else {
      stream.backend().copy_to_cpu(stream.stream(), storage_, source.view_, source.storage_);
    }
    return info.Env().Undefined();
  });
}

}  // namespace warpgrad::binding
