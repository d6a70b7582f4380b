#include "ops/attention.h"

#include <initializer_list>
#include <string>

#include "core/check.h"
#include "ops/list_of.h"

namespace warpgrad::ops {
namespace {

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

// The sizes that q, k and v agree on. Messages start with the name of the operation.
class AttentionChecker {
 public:
  AttentionChecker(const char* operation, const AttentionOptions& options, const TensorView& q, const TensorView& k,
                   const TensorView& v)
      : operation_(operation), packed_(q.rank == 3), dtype_(q.dtype) {
    check_inputs(q, k, v);
    check_options(options);
    check_cu_seqlens("cu_seqlens_q", options.cu_seqlens_q, q_rows_);
    check_cu_seqlens("cu_seqlens_k", options.cu_seqlens_k, k_rows_);
    WG_CHECK(options.cu_seqlens_q.size() == options.cu_seqlens_k.size(), kInvalid, operation_,
             ": cu_seqlens_q and cu_seqlens_k must have the same length, got ", options.cu_seqlens_q.size(), " and ",
             options.cu_seqlens_k.size());
  }

  void input(const char* name, const TensorView& view, bool query_side, int64_t heads, int64_t dim) const {
    check_shape(name, view, query_side, heads, dim);
    check_dtype(name, view, dtype_);
    const int last = view.rank - 1;
    WG_CHECK(view.shape[last] <= 1 || view.strides[last] == 1, kInvalid, operation_, ": ", name,
             " must have stride 1 in the last dimension, got ", view.strides[last]);
  }
  void output(const char* name, const TensorView& view, bool query_side, int64_t heads, int64_t dim) const {
    check_shape(name, view, query_side, heads, dim);
    check_dtype(name, view, dtype_);
    check_contiguous(name, view);
  }
  void lse(const TensorView& view) const {
    const int64_t dense[] = {batch_, heads_, q_rows_};
    check_exact_shape("lse", view, packed_ ? dense + 1 : dense, packed_ ? 2 : 3);
    check_dtype("lse", view, DType::kFloat32);
    check_contiguous("lse", view);
  }
  void per_head(const char* name, const TensorView& view) const {
    if (!view) return;
    check_exact_shape(name, view, &heads_, 1);
    check_dtype(name, view, DType::kFloat32);
  }
  void check_contiguous(const char* name, const TensorView& view) const {
    WG_CHECK(view.contiguous(), kInvalid, operation_, ": ", name, " must be contiguous, got strides ",
             list_of(view.strides, view.rank), " for shape ", list_of(view.shape, view.rank));
  }

  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t d() const { return d_; }
  int64_t dv() const { return dv_; }

 private:
  void check_inputs(const TensorView& q, const TensorView& k, const TensorView& v) {
    WG_CHECK(q.rank == 3 || q.rank == 4, kInvalid, operation_, ": q must have rank 4, or 3 when packed, got ", q.rank);
    WG_CHECK(k.rank == q.rank && v.rank == q.rank, kInvalid, operation_, ": k and v must have the rank of q, ", q.rank,
             ", got ", k.rank, " and ", v.rank);
    WG_CHECK(dtype_ != DType::kInt32, kInvalid, operation_, ": q must be float32, float16 or bfloat16, got int32");
    const int rank = q.rank;
    batch_ = packed_ ? 1 : q.shape[0];
    q_rows_ = q.shape[rank - 3];
    k_rows_ = k.shape[rank - 3];
    heads_ = q.shape[rank - 2];
    kv_heads_ = k.shape[rank - 2];
    d_ = q.shape[rank - 1];
    dv_ = v.shape[rank - 1];
    WG_CHECK(kv_heads_ > 0 && heads_ % kv_heads_ == 0, kInvalid, operation_,
             ": the heads of q must be a multiple of those of k, got ", heads_, " and ", kv_heads_);
    check_dim("head dimension of q", d_);
    check_dim("head dimension of v", dv_);
    input("q", q, true, heads_, d_);
    input("k", k, false, kv_heads_, d_);
    input("v", v, false, kv_heads_, dv_);
  }
  void check_dim(const char* name, int64_t dim) const {
    WG_CHECK(dim >= 1 && dim <= kMaxHeadDim, kInvalid, operation_, ": the ", name, " must be in 1..", kMaxHeadDim,
             ", got ", dim);
  }
  void check_options(const AttentionOptions& options) const {
    WG_CHECK(options.softcap >= 0, kInvalid, operation_, ": softcap must be 0 or positive, got ", options.softcap);
    WG_CHECK(options.window_left >= 0 && options.window_right >= 0, kInvalid, operation_,
             ": windows must not be negative, got ", options.window_left, " and ", options.window_right);
  }
  void check_cu_seqlens(const char* name, const std::vector<int32_t>& offsets, int64_t num_rows) const {
    WG_CHECK(packed_ == !offsets.empty(), kInvalid, operation_, ": ", name,
             packed_ ? " is missing for packed q of rank 3" : " needs packed q of rank 3");
    if (!packed_) return;
    WG_CHECK(offsets.front() == 0, kInvalid, operation_, ": ", name, " must start at 0, got ", offsets.front());
    for (size_t i = 1; i < offsets.size(); ++i) {
      WG_CHECK(offsets[i] >= offsets[i - 1], kInvalid, operation_, ": ", name, " must not decrease, got ",
               offsets[i - 1], ", ", offsets[i], " at ", i - 1);
    }
    WG_CHECK(offsets.back() <= num_rows, kInvalid, operation_, ": ", name, " must end within the ", num_rows,
             " rows, got ", offsets.back());
  }
  void check_shape(const char* name, const TensorView& view, bool query_side, int64_t heads, int64_t dim) const {
    const int64_t expected[] = {batch_, query_side ? q_rows_ : k_rows_, heads, dim};
    check_exact_shape(name, view, packed_ ? expected + 1 : expected, packed_ ? 3 : 4);
  }
  void check_exact_shape(const char* name, const TensorView& view, const int64_t* expected, int rank) const {
    bool same = view.rank == rank;
    for (int i = 0; same && i < rank; ++i) same = view.shape[i] == expected[i];
    WG_CHECK(same, kInvalid, operation_, ": ", name, " must have shape ", list_of(expected, rank), ", got ",
             list_of(view.shape, view.rank));
    WG_CHECK(view || view.num_elems() == 0, kInvalid, operation_, ": ", name, " is missing");
  }
  void check_dtype(const char* name, const TensorView& view, DType expected) const {
    WG_CHECK(view.dtype == expected, kInvalid, operation_, ": ", name, " must be ", dtype_name(expected), ", got ",
             dtype_name(view.dtype));
  }

  const char* operation_;
  bool packed_;
  DType dtype_;
  int64_t batch_ = 0, q_rows_ = 0, k_rows_ = 0, heads_ = 0, kv_heads_ = 0, d_ = 0, dv_ = 0;
};

}  // namespace

void check(const AttentionForwardParams& params) {
  const AttentionChecker checker("attentionForward", params.options, params.q, params.k, params.v);
  checker.per_head("sink", params.sink);
  checker.output("out", params.out, true, checker.heads(), checker.dv());
  checker.lse(params.lse);
}

void check(const AttentionBackwardParams& params) {
  const AttentionChecker checker("attentionBackward", params.options, params.q, params.k, params.v);
  checker.input("dOut", params.d_out, true, checker.heads(), checker.dv());
  checker.output("out", params.out, true, checker.heads(), checker.dv());
  checker.lse(params.lse);
  checker.per_head("sink", params.sink);
  checker.output("dq", params.dq, true, checker.heads(), checker.d());
  checker.output("dk", params.dk, false, checker.kv_heads(), checker.d());
  checker.output("dv", params.dv, false, checker.kv_heads(), checker.dv());
  WG_CHECK(!params.d_sink || params.sink, kInvalid, "attentionBackward: dSink needs sink");
  checker.per_head("dSink", params.d_sink);
  if (params.d_sink) checker.check_contiguous("dSink", params.d_sink);
}

}  // namespace warpgrad::ops
