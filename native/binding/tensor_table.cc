#include "binding/tensor_table.h"

#include "binding/environment.h"
#include "core/check.h"

namespace warpgrad::binding {

namespace {

// Externals hold the number plus 1: a null pointer is no number.
void* to_pointer(size_t number) {
  return reinterpret_cast<void*>(number + 1);
}
size_t to_number(void* pointer) {
  return reinterpret_cast<size_t>(pointer) - 1;
}

}  // namespace

Napi::Value TensorTable::add(Environment& environment, Napi::Env env) {
  const size_t number = free_.empty() ? handles_.size() : free_.back();
  napi_value external = nullptr;
  napi_ref reference = nullptr;
  napi_status status = napi_create_external(env, to_pointer(number), nullptr, nullptr, &external);
  if (status == napi_ok) {
    status = napi_add_finalizer(env, external, to_pointer(number), finalize, &environment, &reference);
  }
  if (status != napi_ok) throw Napi::Error::New(env);
  if (free_.empty()) {
    handles_.emplace_back();
  } else {
    free_.pop_back();
  }
  handles_[number].external = reference;
  return {env, external};
}

TensorHandle& TensorTable::get(const Napi::Value& value) {
  void* pointer = nullptr;
  const bool external = napi_get_value_external(value.Env(), value, &pointer) == napi_ok;
  const size_t number = to_number(pointer);
  WG_CHECK(external && number < handles_.size() && handles_[number].external != nullptr, ErrorCode::kInternal,
           "expected a NativeTensor");
  return handles_[number];
}

bool TensorTable::collector_has_run(Napi::Env env) {
  const Napi::HandleScope scope(env);
  if (!probe_.IsEmpty() && !probe_.Value().IsEmpty()) return false;
  probe_ = Napi::Weak(Napi::Object::New(env));
  return true;
}

void TensorTable::release_collected(Environment& environment, Napi::Env env) {
  if (!collector_has_run(env)) return;
  for (TensorHandle& handle : handles_) {
    if (!handle.holds_storage()) continue;
    const Napi::HandleScope scope(env);
    napi_value external = nullptr;
    napi_get_reference_value(env, handle.external, &external);
    if (external == nullptr) handle.release(environment, FreedBy::kCollector);
  }
}

void TensorTable::finalize(napi_env env, void* pointer, void* data) {
  Environment& environment = *static_cast<Environment*>(data);
  TensorTable& table = environment.tensors;
  const size_t number = to_number(pointer);
  TensorHandle& handle = table.handles_[number];
  handle.release(environment, FreedBy::kCollector);
  napi_delete_reference(env, handle.external);
  handle.external = nullptr;
  table.free_.push_back(number);
}

}  // namespace warpgrad::binding
