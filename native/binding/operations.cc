#include "binding/operations.h"

#include <cmath>
#include <utility>
#include <vector>

#include "binding/environment.h"
#include "binding/stream_handle.h"
#include "binding/tensor_handle.h"
#include "core/check.h"
#include "ops/outputs.h"

namespace warpgrad::binding {

namespace {

constexpr size_t kMostReads = 11, kMostWrites = 8;  // of kdaBackward

// Where `body` finds too little memory, the error says what for.
void allocating_for(const char* what, FunctionRef<void()> body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    throw Error(error.code(), concat(what, ": ", error.what()));
  }
}

// Reads positional arguments in order, and collects the storages behind the tensors.
class Arguments {
 public:
  explicit Arguments(const Napi::CallbackInfo& info) : info_(info), environment_(Environment::of(info.Env())) {}
  ~Arguments() {
    for (TensorHandle* handle : given_memory_) handle->release(environment_, FreedBy::kDispose);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  StreamHandle& stream() {
    stream_ = &StreamHandle::from(next());
    uses.reads.reserve(kMostReads);
    uses.writes.reserve(kMostWrites);
    return *stream_;
  }
  TensorView input() { return tensor(uses.reads); }  // undefined gives an absent view
  TensorView output() { return tensor(uses.writes); }
  // A tensor without memory is given some, of this layout; what is not kept in the end loses it again.
  TensorView output(const char* name, const TensorView& layout) {
    const Napi::Value value = info_[position_];
    if (!value.IsUndefined()) give_memory(name, environment_.tensors.get(value), layout);
    return output();
  }
  void keep_outputs() { given_memory_.clear(); }
  float number() { return next().As<Napi::Number>().FloatValue(); }
  bool flag() { return next().As<Napi::Boolean>().Value(); }
  int integer() { return next().As<Napi::Number>().Int32Value(); }

  int64_t window_side() {
    const double value = next().As<Napi::Number>().DoubleValue();
    WG_CHECK(value >= 0, ErrorCode::kInvalidArgument, "windows must not be negative, got ", value);
    return value < 0x1p62 ? static_cast<int64_t>(value) : ops::kUnbounded;
  }

  std::vector<int32_t> cu_seqlens() {  // undefined gives an empty vector
    const Napi::Value value = next();
    if (value.IsUndefined()) return {};
    const Napi::Int32Array array = value.As<Napi::Int32Array>();
    WG_CHECK(array.TypedArrayType() == napi_int32_array, ErrorCode::kInternal, "expected an Int32Array");
    return std::vector<int32_t>(array.Data(), array.Data() + array.ElementLength());
  }

  StorageUses uses;

 private:
  Napi::Value next() { return info_[position_++]; }

  void give_memory(const char* name, TensorHandle& handle, const TensorView& layout) {
    if (handle.holds_storage()) return;
    allocating_for(name, [&] { handle.allocate(environment_, info_.Env(), *stream_, ops::contiguous_like(layout)); });
    given_memory_.push_back(&handle);
  }

  TensorView tensor(std::vector<StoragePtr>& storages) {
    const Napi::Value value = next();
    if (value.IsUndefined()) return {};
    const TensorHandle& handle = environment_.tensors.get(value);
    WG_CHECK(handle.holds_storage(), ErrorCode::kInternal, "the tensor was disposed");
    stream_->backend_of(*handle.storage());
    storages.push_back(handle.storage());
    return handle.view();
  }

  const Napi::CallbackInfo& info_;
  Environment& environment_;
  StreamHandle* stream_ = nullptr;
  size_t position_ = 0;
  std::vector<TensorHandle*> given_memory_;
};

// scale, softcap, windowLeft, windowRight, cuSeqlensQ?, cuSeqlensK?
ops::AttentionOptions attention_options(Arguments& arguments) {
  ops::AttentionOptions options;
  options.scale = arguments.number();
  options.softcap = arguments.number();
  options.window_left = arguments.window_side();
  options.window_right = arguments.window_side();
  options.cu_seqlens_q = arguments.cu_seqlens();
  options.cu_seqlens_k = arguments.cu_seqlens();
  return options;
}

ops::GateKind gate_kind(int code) {
  WG_CHECK(code >= 0 && code <= static_cast<int>(ops::GateKind::kBounded), ErrorCode::kInternal,
           "no gate has the code ", code);
  return static_cast<ops::GateKind>(code);
}

// scale, qkL2Norm, gateKind, lowerBound, betaLogits, allowNegEigval, stateVk, cuSeqlens?
ops::KdaOptions kda_options(Arguments& arguments) {
  ops::KdaOptions options;
  options.scale = arguments.number();
  options.qk_l2_norm = arguments.flag();
  options.gate = gate_kind(arguments.integer());
  options.lower_bound = arguments.number();
  options.beta_logits = arguments.flag();
  options.allow_neg_eigval = arguments.flag();
  options.state_vk = arguments.flag();
  options.batch_invariant = arguments.flag();
  options.cu_seqlens = arguments.cu_seqlens();
  return options;
}

// Fills the tensors of Params with `read`, checks them and hands them to the backend.
template <class Params>
Napi::Value run(const Napi::CallbackInfo& info, void (ops::Backend::*operation)(Stream&, Params, StorageUses),
                void (*read)(Arguments&, Params&)) {
  return guarded(info, [&] {
    Arguments arguments(info);
    StreamHandle& stream = arguments.stream();
    Params params;
    read(arguments, params);
    ops::check(params);
    allocating_for("workspace", [&] {
      (stream.backend().*operation)(stream.stream(), std::move(params), std::move(arguments.uses));
    });
    arguments.keep_outputs();
    return info.Env().Undefined();
  });
}

Napi::Value attention_forward(const Napi::CallbackInfo& info) {
  return run<ops::AttentionForwardParams>(
      info, &ops::Backend::attention_forward, [](Arguments& arguments, auto& params) {
        for (TensorView* view : {&params.q, &params.k, &params.v, &params.sink}) *view = arguments.input();
        params.out = arguments.output("out", ops::attention_out(params.q, params.v));
        params.lse = arguments.output("lse", ops::attention_lse(params.q));
        params.options = attention_options(arguments);
      });
}

Napi::Value attention_backward(const Napi::CallbackInfo& info) {
  return run<ops::AttentionBackwardParams>(
      info, &ops::Backend::attention_backward, [](Arguments& arguments, auto& params) {
        for (TensorView* view :
             {&params.d_out, &params.q, &params.k, &params.v, &params.out, &params.lse, &params.sink}) {
          *view = arguments.input();
        }
        params.dq = arguments.output("dq", params.q);
        params.dk = arguments.output("dk", params.k);
        params.dv = arguments.output("dv", params.v);
        params.d_sink = arguments.output("dSink", params.sink);
        params.options = attention_options(arguments);
        params.deterministic = arguments.flag();
      });
}

template <class Params>
void read_kda_inputs(Arguments& arguments, Params& params) {
  for (TensorView* view : {&params.q, &params.k, &params.v, &params.g, &params.beta, &params.a_log, &params.dt_bias,
                           &params.initial_state}) {
    *view = arguments.input();
  }
}

Napi::Value kda_forward(const Napi::CallbackInfo& info) {
  return run<ops::KdaForwardParams>(info, &ops::Backend::kda_forward, [](Arguments& arguments, auto& params) {
    read_kda_inputs(arguments, params);
    params.out = arguments.output("out", params.v);
    for (TensorView* view : {&params.final_state, &params.chunk_states, &params.saved}) *view = arguments.output();
    params.options = kda_options(arguments);
  });
}

Napi::Value kda_backward(const Napi::CallbackInfo& info) {
  return run<ops::KdaBackwardParams>(info, &ops::Backend::kda_backward, [](Arguments& arguments, auto& params) {
    for (TensorView* view : {&params.d_out, &params.d_final_state}) *view = arguments.input();
    read_kda_inputs(arguments, params);
    params.saved = arguments.input();
    params.dq = arguments.output("dq", params.q);
    params.dk = arguments.output("dk", params.k);
    params.dv = arguments.output("dv", params.v);
    params.dg = arguments.output("dg", params.g);
    params.dbeta = arguments.output("dbeta", params.beta);
    params.d_initial_state = arguments.output("dInitialState", params.initial_state);
    params.d_a_log = arguments.output("dALog", params.a_log);
    params.d_dt_bias = arguments.output();
    params.options = kda_options(arguments);
  });
}

// stream, K, V: of one chunk and value head
Napi::Value kda_saved_elems(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    Arguments arguments(info);
    StreamHandle& stream = arguments.stream();
    ops::KdaSavedDims dims{1, 1, 0, 0};
    for (int64_t* dim : {&dims.key_dim, &dims.value_dim}) *dim = arguments.integer();
    return Napi::Number::New(info.Env(), static_cast<double>(stream.backend().kda_saved_elems(dims)));
  });
}

}  // namespace

void define_operations(Napi::Env env, Napi::Object exports) {
  exports.Set("attentionForward", Napi::Function::New(env, attention_forward));
  exports.Set("attentionBackward", Napi::Function::New(env, attention_backward));
  exports.Set("kdaForward", Napi::Function::New(env, kda_forward));
  exports.Set("kdaBackward", Napi::Function::New(env, kda_backward));
  exports.Set("kdaSavedElems", Napi::Function::New(env, kda_saved_elems));
}

}  // namespace warpgrad::binding
