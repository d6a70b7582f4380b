#include "binding/tensor_handle.h"

#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

#include "binding/environment.h"
#include "binding/stream_handle.h"
#include "core/check.h"
#include "core/out_of_memory.h"

namespace warpgrad::binding {

namespace {

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
constexpr double kMaxSafeInteger = 9007199254740991;

int64_t to_integer(double number) {
  WG_CHECK(std::abs(number) <= kMaxSafeInteger && number == std::trunc(number), kInvalid, "expected an integer, got ",
           number);
  return static_cast<int64_t>(number);
}

int64_t read_integer(const Napi::Value& value) {
  return to_integer(value.As<Napi::Number>().DoubleValue());
}

// What the elements of a view take without gaps.
size_t contiguous_bytes(const TensorView& view) {
  int64_t bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
  for (int i = 0; i < view.rank; ++i) {
    WG_CHECK(!__builtin_mul_overflow(bytes, view.shape[i], &bytes), kInvalid, "the tensor has too many elements");
  }
  return static_cast<size_t>(bytes);
}

// Reads the shape from Environment::sizes.
void read_shape(const Napi::Value& rank, TensorView& view) {
  const int64_t count = read_integer(rank);
  WG_CHECK(count >= 0 && count <= kMaxRank, kInvalid, "a tensor has 0 to ", kMaxRank, " dimensions, got ", count);
  view.rank = static_cast<int>(count);
  const double* sizes = Environment::of(rank.Env()).sizes;
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = to_integer(sizes[i]);
    WG_CHECK(view.shape[i] >= 0, kInvalid, "sizes must not be negative, got ", view.shape[i]);
  }
  contiguous_bytes(view);  // checks that there are not too many
}

// Reads the strides, which follow the shape.
void read_strides(Napi::Env env, TensorView& view) {
  const double* sizes = Environment::of(env).sizes;
  for (int i = 0; i < view.rank; ++i) view.strides[i] = to_integer(sizes[view.rank + i]);
}

// Where the elements of a view lie, in bytes from the first one; `end` is one past the last byte.
struct Span {
  int64_t begin = 0, end = 0;
};

Span span_of(const TensorView& view) {
  if (view.num_elems() == 0) return {};
  const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
  Span span{0, element_bytes};
  for (int i = 0; i < view.rank; ++i) {
    int64_t reach = 0;
    bool overflows = __builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach);
    overflows |= __builtin_mul_overflow(reach, element_bytes, &reach);
    int64_t& side = reach < 0 ? span.begin : span.end;
    overflows |= __builtin_add_overflow(side, reach, &side);
    WG_CHECK(!overflows, kInvalid, "the strides reach beyond any memory");
  }
  return span;
}

TensorHandle& tensor(const Napi::Value& value) {
  return Environment::of(value.Env()).tensors.get(value);
}

TensorHandle& live_tensor(const Napi::Value& value) {
  TensorHandle& handle = tensor(value);
  WG_CHECK(handle.holds_storage(), ErrorCode::kInternal, "the tensor was disposed");
  return handle;
}

// The external of a handle in no use: `reused`, a released one, or a new one.
Napi::Value empty_external(const Napi::Value& reused) {
  Environment& environment = Environment::of(reused.Env());
  return reused.IsUndefined() ? environment.tensors.add(environment, reused.Env()) : reused;
}

// Gives the external of a handle that holds `storage`.
Napi::Value hand_out(const Napi::Value& reused, const TensorView& view, StoragePtr storage) {
  const Napi::Value external = empty_external(reused);
  tensor(external).set(Environment::of(reused.Env()), view, std::move(storage));
  return external;
}

// tensorHandle(): without memory, for an operation to give it some.
Napi::Value make_handle(const Napi::CallbackInfo& info) {
  return guarded(info, [&] { return empty_external(info.Env().Undefined()); });
}

// tensorAllocate(stream, dtype, rank, zeroed, reused?): contiguous. `reused` is a released tensor to fill again.
Napi::Value allocate(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    StreamHandle& stream = StreamHandle::from(info[0]);
    TensorView view;
    view.dtype = read_dtype(info[1]);
    read_shape(info[2], view);
    view.set_contiguous_strides();
    const Napi::Value external = empty_external(info[4]);
    TensorHandle& handle = tensor(external);
    handle.allocate(Environment::of(info.Env()), info.Env(), stream, view);
    if (info[3].As<Napi::Boolean>().Value()) stream.backend().zero(stream.stream(), handle.storage());
    return external;
  });
}

// tensorAdopt(stream, dtype, rank, address, owner?): memory that others made, trusted to hold the elements.
Napi::Value adopt(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    StreamHandle& stream = StreamHandle::from(info[0]);
    TensorView view;
    view.dtype = read_dtype(info[1]);
    read_shape(info[2], view);
    read_strides(info.Env(), view);
    bool lossless = false;
    view.data = reinterpret_cast<void*>(info[3].As<Napi::BigInt>().Uint64Value(&lossless));
    WG_CHECK(lossless && view.data != nullptr, kInvalid, "the address must be a positive 64-bit number");
    const Span span = span_of(view);
    WG_CHECK(span.begin == 0, kInvalid, "strides must not be negative");
    std::shared_ptr<void> owner = Environment::of(info.Env()).hold(info[4]);
    StoragePtr storage =
        stream.backend().adopt(view.data, static_cast<size_t>(span.end), stream.stream(), std::move(owner));
    return hand_out(info.Env().Undefined(), view, std::move(storage));
  });
}

// tensorView(tensor, rank, offset, reused?): another handle on the same storage; in elements of its dtype.
Napi::Value make_view(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const TensorHandle& source = live_tensor(info[0]);
    TensorView view;
    view.dtype = source.view().dtype;
    read_shape(info[1], view);
    read_strides(info.Env(), view);
    const Span span = span_of(view);
    const char* base = static_cast<const char*>(source.storage()->data());
    const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
    const int64_t first = static_cast<const char*>(source.view().data) - base + read_integer(info[2]) * element_bytes;
    const int64_t size = static_cast<int64_t>(source.storage()->bytes());
    // Compared one by one: sums of what JavaScript passed could overflow.
    WG_CHECK(first >= 0 && first <= size && span.begin >= -first && span.end <= size - first, kInvalid,
             "the view reaches beyond the tensor's memory");
    view.data = const_cast<char*>(base) + first;
    return hand_out(info[3], view, source.storage());
  });
}

// tensorRelease(tensor): gives up the share in the storage; the handle may be reused.
Napi::Value release(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    tensor(info[0]).release(Environment::of(info.Env()), FreedBy::kDispose);
    return info.Env().Undefined();
  });
}

// tensorAddress(tensor)
Napi::Value address(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    return Napi::BigInt::New(info.Env(),
                             static_cast<uint64_t>(reinterpret_cast<uintptr_t>(live_tensor(info[0]).view().data)));
  });
}

// tensorWrite(stream, tensor, typedArray): fills a fresh contiguous tensor with the bytes of the array.
Napi::Value write(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    StreamHandle& stream = StreamHandle::from(info[0]);
    const StoragePtr& storage = live_tensor(info[1]).storage();
    const Napi::TypedArray array = info[2].As<Napi::TypedArray>();
    WG_CHECK(array.ByteLength() == storage->bytes(), ErrorCode::kInternal, "write: the sizes differ");
    const char* host = static_cast<const char*>(array.ArrayBuffer().Data()) + array.ByteOffset();
    stream.backend_of(*storage).write(stream.stream(), storage, host, array.ByteLength());
    return info.Env().Undefined();
  });
}

// Enqueues the copy to a fresh ArrayBuffer and gives that. The caller is named here, as what else fails then is the
// failure of an operation, which has a name.
Napi::ArrayBuffer enqueue_read(const char* caller, const Napi::CallbackInfo& info, StreamHandle& stream) {
  const TensorHandle& source = live_tensor(info[1]);
  const size_t bytes = static_cast<size_t>(source.view().num_elems()) * dtype_bytes(source.view().dtype);
  // The engine ends the process when it can't allocate; whether it can is asked of the system first.
  void* const probe = std::malloc(bytes + 1);
  if (probe == nullptr) throw out_of_memory(concat(caller, ": cpu"), bytes, " for the elements");
  std::free(probe);  // before the engine asks for as much
  Napi::ArrayBuffer buffer = Napi::ArrayBuffer::New(info.Env(), bytes);
  ops::Backend& backend = stream.backend_of(*source.storage());
  if (bytes > 0) backend.read(stream.stream(), buffer.Data(), source.view(), {{source.storage()}, {}});
  return buffer;
}

// tensorRead(stream, tensor): a promise of an ArrayBuffer with the elements in row-major order.
Napi::Value read(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    StreamHandle& stream = StreamHandle::from(info[0]);
    const Napi::ArrayBuffer buffer = enqueue_read("data", info, stream);
    return Environment::of(info.Env()).when_done(info.Env(), stream.stream(), buffer);
  });
}

// tensorReadSync(stream, tensor)
Napi::Value read_sync(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    StreamHandle& stream = StreamHandle::from(info[0]);
    const Napi::ArrayBuffer buffer = enqueue_read("dataSync", info, stream);
    stream.stream().synchronize();
    return buffer;
  });
}

// tensorCopy(stream, target, source, overwrites): target = source, converted to its dtype. `overwrites`: the target is
// not fresh. Between devices both are contiguous and of one dtype, and the stream is the target's, or the source's when
// the target is on the CPU.
Napi::Value copy(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    StreamHandle& stream = StreamHandle::from(info[0]);
    const TensorHandle& target = live_tensor(info[1]);
    const TensorHandle& source = live_tensor(info[2]);
    const TensorView &to = target.view(), &from = source.view();
    WG_CHECK(to.rank == from.rank && to.shape == from.shape, ErrorCode::kInternal, "copy: the shapes differ");
    if (source.storage()->device() == target.storage()->device()) {
      ops::Backend& backend = stream.backend_of(*target.storage());
      if (info[3].As<Napi::Boolean>().Value()) backend.order_after_uses(stream.stream(), target.storage());
      backend.copy(stream.stream(), to, from, {{source.storage()}, {target.storage()}});
      return info.Env().Undefined();
    }
    WG_CHECK(to.dtype == from.dtype && from.contiguous() && to.contiguous() && to.data == target.storage()->data(),
             ErrorCode::kInternal, "copy: a copy between devices neither converts nor gathers");
    if (target.storage()->device().type == DeviceType::kCpu) {
      stream.backend_of(*source.storage()).copy_to_cpu(stream.stream(), target.storage(), from, source.storage());
    } else {
      stream.backend_of(*target.storage()).copy_from(stream.stream(), target.storage(), from, source.storage());
    }
    return info.Env().Undefined();
  });
}

}  // namespace

void TensorHandle::allocate(Environment& environment, Napi::Env env, StreamHandle& stream, TensorView layout) {
  const size_t bytes = contiguous_bytes(layout);
  environment.before_allocation(env, bytes);
  StoragePtr storage = stream.backend().allocate(bytes, stream.stream());
  layout.data = storage->data();
  set(environment, layout, std::move(storage));
}

void TensorHandle::set(Environment& environment, const TensorView& view, StoragePtr storage) {
  WG_CHECK(!holds_storage(), ErrorCode::kInternal, "the tensor is in use");
  view_ = view;
  storage_ = std::move(storage);
  if (storage_->num_handles++ == 0) environment.note_allocated(storage_->bytes());
}

void TensorHandle::release(Environment& environment, FreedBy by) {
  if (!storage_) return;
  if (--storage_->num_handles == 0) environment.note_freed(storage_->bytes(), by);
  storage_.reset();
  view_.data = nullptr;
}

DType read_dtype(const Napi::Value& value) {
  const int64_t code = read_integer(value);
  WG_CHECK(code >= 0 && code <= static_cast<int64_t>(DType::kInt32), kInvalid, "no dtype has the code ", code);
  return static_cast<DType>(code);
}

void define_tensors(Napi::Env env, Napi::Object exports) {
  double* sizes = Environment::of(env).sizes;
  const auto memory = Napi::ArrayBuffer::New(env, sizes, sizeof(Environment::sizes));
  exports.Set("sizes", Napi::Float64Array::New(env, 2 * kMaxRank, memory, 0));
  exports.Set("tensorAllocate", Napi::Function::New<allocate>(env));
  exports.Set("tensorHandle", Napi::Function::New<make_handle>(env));
  exports.Set("tensorAdopt", Napi::Function::New<adopt>(env));
  exports.Set("tensorView", Napi::Function::New<make_view>(env));
  exports.Set("tensorRelease", Napi::Function::New<release>(env));
  exports.Set("tensorAddress", Napi::Function::New<address>(env));
  exports.Set("tensorWrite", Napi::Function::New<write>(env));
  exports.Set("tensorRead", Napi::Function::New<read>(env));
  exports.Set("tensorReadSync", Napi::Function::New<read_sync>(env));
  exports.Set("tensorCopy", Napi::Function::New<copy>(env));
}

}  // namespace warpgrad::binding
