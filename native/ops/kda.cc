#include "ops/kda.h"

#include <initializer_list>
#include <string>

#include "core/check.h"
#include "ops/list_of.h"

namespace warpgrad::ops {
namespace {

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

// Checks tensors of one operation; messages start with its name.
class Checker {
 public:
  explicit Checker(const char* operation) : operation_(operation) {}

  void shape(const char* name, const TensorView& view, std::initializer_list<int64_t> expected) const {
    const int rank = static_cast<int>(expected.size());
    bool same = view.rank == rank;
    for (int i = 0; same && i < rank; ++i) same = view.shape[i] == expected.begin()[i];
    WG_CHECK(same, kInvalid, operation_, ": ", name, " must have shape ", list_of(expected.begin(), rank), ", got ",
             list_of(view.shape, view.rank));
  }
  void dtype(const char* name, const TensorView& view, DType expected, DType other) const {
    const bool same = view.dtype == expected || view.dtype == other;
    const std::string alternative = expected == other ? "" : concat(" or ", dtype_name(other));
    WG_CHECK(same, kInvalid, operation_, ": ", name, " must be ", dtype_name(expected), alternative, ", got ",
             dtype_name(view.dtype));
  }
  void dense_rows(const char* name, const TensorView& view) const {
    const int last = view.rank - 1;
    WG_CHECK(view.shape[last] <= 1 || view.strides[last] == 1, kInvalid, operation_, ": ", name,
             " must have stride 1 in the last dimension, got ", view.strides[last]);
  }
  void contiguous(const char* name, const TensorView& view) const {
    WG_CHECK(view.contiguous(), kInvalid, operation_, ": ", name, " must be contiguous, got strides ",
             list_of(view.strides, view.rank), " for shape ", list_of(view.shape, view.rank));
  }

  void input(const char* name, const TensorView& view, std::initializer_list<int64_t> expected, DType type,
             DType other) const {
    present(name, view);
    shape(name, view, expected);
    dtype(name, view, type, other);
  }
  void output(const char* name, const TensorView& view, std::initializer_list<int64_t> expected, DType type) const {
    present(name, view);
    shape(name, view, expected);
    dtype(name, view, type, type);
    contiguous(name, view);
  }
  void present(const char* name, const TensorView& view) const {
    // A tensor without elements may have no address.
    WG_CHECK(view || (view.rank > 0 && view.num_elems() == 0), kInvalid, operation_, ": ", name, " is missing");
  }
  const char* operation() const { return operation_; }

 private:
  const char* operation_;
};

struct Dims {
  int64_t B, T, H, HV, K, V, N;
};

template <class Params>
Dims dims_of(const Checker& check, const Params& params) {
  const TensorView& q = params.q;
  const TensorView& v = params.v;
  for (const auto& [name, view] : {std::pair{"q", &q}, {"v", &v}}) {
    check.present(name, *view);
    WG_CHECK(view->rank == 4, kInvalid, check.operation(), ": ", name, " must have 4 dimensions, got shape ",
             list_of(view->shape, view->rank));
  }
  const std::vector<int32_t>& cu_seqlens = params.options.cu_seqlens;
  const int64_t num_sequences = cu_seqlens.empty() ? q.shape[0] : static_cast<int64_t>(cu_seqlens.size()) - 1;
  return {q.shape[0], q.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3], num_sequences};
}

void check_options(const Checker& check, const KdaOptions& options, const Dims& d) {
  const char* operation = check.operation();
  WG_CHECK(d.K >= 1 && d.K <= kMaxKdaDim, kInvalid, operation, ": the key dimension must be in 1..", kMaxKdaDim,
           ", got ", d.K);
  WG_CHECK(d.V >= 1 && d.V <= kMaxKdaDim, kInvalid, operation, ": the value dimension must be in 1..", kMaxKdaDim,
           ", got ", d.V);
  WG_CHECK(d.H >= 1 && d.HV >= 1 && d.HV % d.H == 0, kInvalid, operation,
           ": the heads of v must be a multiple of the heads of q, got ", d.HV, " and ", d.H);
  WG_CHECK(options.gate != GateKind::kBounded || options.lower_bound < 0, kInvalid, operation,
           ": lower_bound must be negative, got ", options.lower_bound);
  if (options.cu_seqlens.empty()) return;
  const std::vector<int32_t>& cu = options.cu_seqlens;
  WG_CHECK(d.B == 1, kInvalid, operation, ": the batch size of packed sequences must be 1, got ", d.B);
  WG_CHECK(cu.front() == 0, kInvalid, operation, ": cu_seqlens must start at 0, got ", cu.front());
  for (size_t i = 1; i < cu.size(); ++i) {
    WG_CHECK(cu[i] >= cu[i - 1], kInvalid, operation, ": cu_seqlens must not decrease, got ", cu[i - 1], " then ",
             cu[i]);
  }
  WG_CHECK(cu.back() <= d.T, kInvalid, operation, ": cu_seqlens must end at ", d.T, " tokens at most, got ", cu.back());
}

void check_states(const Checker& check, const char* name, const TensorView& view, bool is_output, int64_t count,
                  const Dims& d, bool state_vk) {
  if (!view) return;
  const std::initializer_list<int64_t> shape = {count, d.HV, state_vk ? d.V : d.K, state_vk ? d.K : d.V};
  if (is_output) {
    check.output(name, view, shape, DType::kFloat32);
  } else {
    check.input(name, view, shape, DType::kFloat32, DType::kFloat32);
    check.dense_rows(name, view);
  }
}

template <class Params>
void check_inputs(const Checker& check, const Params& params, const Dims& d) {
  const DType type = params.q.dtype;
  WG_CHECK(type != DType::kInt32, kInvalid, check.operation(), ": q must be float32, float16 or bfloat16, got int32");
  check.input("q", params.q, {d.B, d.T, d.H, d.K}, type, type);
  check.input("k", params.k, {d.B, d.T, d.H, d.K}, type, type);
  check.input("v", params.v, {d.B, d.T, d.HV, d.V}, type, type);
  check.input("g", params.g, {d.B, d.T, d.HV, d.K}, DType::kFloat32, type);
  check.input("beta", params.beta, {d.B, d.T, d.HV}, DType::kFloat32, type);
  for (const auto& [name, view] : {std::pair{"q", &params.q}, {"k", &params.k}, {"v", &params.v}, {"g", &params.g}}) {
    check.dense_rows(name, *view);
  }
  if (params.a_log) check.input("A_log", params.a_log, {d.HV}, DType::kFloat32, DType::kFloat32);
  if (params.dt_bias) {
    check.input("dt_bias", params.dt_bias, {d.HV, d.K}, DType::kFloat32, DType::kFloat32);
    check.dense_rows("dt_bias", params.dt_bias);
  }
  check_states(check, "initial_state", params.initial_state, false, d.N, d, params.options.state_vk);
}

}  // namespace

int64_t num_chunks(const KdaOptions& options, int64_t batch, int64_t tokens) {
  const auto chunks_in = [](int64_t length) { return (length + kKdaChunk - 1) / kKdaChunk; };
  if (options.cu_seqlens.empty()) return batch * chunks_in(tokens);
  int64_t count = 0;
  for (size_t n = 1; n < options.cu_seqlens.size(); ++n) {
    count += chunks_in(int64_t(options.cu_seqlens[n]) - options.cu_seqlens[n - 1]);
  }
  return count;
}

void check_saved(const char* operation, const TensorView& saved, int64_t elems) {
  if (saved) Checker(operation).output("saved", saved, {elems}, DType::kFloat32);
}

KdaSavedDims saved_dims(const KdaOptions& options, const TensorView& q, const TensorView& v) {
  return {num_chunks(options, q.shape[0], q.shape[1]), v.shape[2], q.shape[3], v.shape[3]};
}

void check(const KdaForwardParams& params) {
  const Checker check("kdaForward");
  const Dims d = dims_of(check, params);
  check_options(check, params.options, d);
  check_inputs(check, params, d);
  check.output("out", params.out, {d.B, d.T, d.HV, d.V}, params.q.dtype);
  check_states(check, "final_state", params.final_state, true, d.N, d, params.options.state_vk);
  check_states(check, "chunk_states", params.chunk_states, true, num_chunks(params.options, d.B, d.T), d,
               params.options.state_vk);
}

void check(const KdaBackwardParams& params) {
  const Checker check("kdaBackward");
  const Dims d = dims_of(check, params);
  const DType type = params.q.dtype;
  check_options(check, params.options, d);
  check_inputs(check, params, d);
  check.input("d_out", params.d_out, {d.B, d.T, d.HV, d.V}, type, type);
  check.dense_rows("d_out", params.d_out);
  check_states(check, "d_final_state", params.d_final_state, false, d.N, d, params.options.state_vk);
  check.output("dq", params.dq, {d.B, d.T, d.H, d.K}, type);
  check.output("dk", params.dk, {d.B, d.T, d.H, d.K}, type);
  check.output("dv", params.dv, {d.B, d.T, d.HV, d.V}, type);
  check.output("dg", params.dg, {d.B, d.T, d.HV, d.K}, params.g.dtype);
  check.output("dbeta", params.dbeta, {d.B, d.T, d.HV}, params.beta.dtype);
  check_states(check, "d_initial_state", params.d_initial_state, true, d.N, d, params.options.state_vk);
  if (params.d_a_log) check.output("d_A_log", params.d_a_log, {d.HV}, DType::kFloat32);
  if (params.d_dt_bias) check.output("d_dt_bias", params.d_dt_bias, {d.HV, d.K}, DType::kFloat32);
}

}  // namespace warpgrad::ops
