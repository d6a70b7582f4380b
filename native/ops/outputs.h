#pragma once

#include "core/tensor_view.h"

namespace warpgrad::ops {

// Layouts of outputs, without gaps and without memory.
TensorView contiguous_like(const TensorView& view);
TensorView attention_out(const TensorView& q, const TensorView& v);
TensorView attention_lse(const TensorView& q);

}  // namespace warpgrad::ops
