#include "ops/outputs.h"

#include "core/check.h"

namespace warpgrad::ops {

namespace {

void check_attention_rank(const TensorView& view) {
  WG_CHECK(view.rank == 3 || view.rank == 4, ErrorCode::kInvalidArgument,
           "attention: q, k and v must have rank 4, or 3 when packed, got ", view.rank);
}

}  // namespace

TensorView contiguous_like(const TensorView& view) {
  TensorView result = view;
  result.data = nullptr;
  result.set_contiguous_strides();
  return result;
}

TensorView attention_out(const TensorView& q, const TensorView& v) {
  check_attention_rank(q);
  check_attention_rank(v);
  TensorView out = q;
  out.shape[out.rank - 1] = v.shape[v.rank - 1];
  return contiguous_like(out);
}

TensorView attention_lse(const TensorView& q) {
  check_attention_rank(q);
  TensorView lse;
  const bool packed = q.rank == 3;
  lse.rank = q.rank - 1;
  if (packed) {
    lse.shape = {q.shape[1], q.shape[0]};
  } else {
    lse.shape = {q.shape[0], q.shape[2], q.shape[1]};
  }
  lse.set_contiguous_strides();
  return lse;
}

}  // namespace warpgrad::ops
