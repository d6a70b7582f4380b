#pragma once

#include "backends/cpu/runtime/exec_context.h"
#include "ops/attention.h"
#include "ops/kda.h"

namespace warpgrad::cpu {

// Each runs to completion on the calling thread and the pool. Parameters are checked already (ops::check).
void attention_forward(const ops::AttentionForwardParams& params, ExecContext& context);
void attention_backward(const ops::AttentionBackwardParams& params, ExecContext& context);
void kda_forward(const ops::KdaForwardParams& params, ExecContext& context);
void kda_backward(const ops::KdaBackwardParams& params, ExecContext& context);
int64_t kda_saved_elems(const ops::KdaSavedDims& dims);

// dst[i] = convert(src[i]) over equal shapes with any strides and dtypes.
void copy_convert(const TensorView& dst, const TensorView& src, ExecContext& context);

// Billions of floating-point operations a second of the matrix micro-kernel on operands that stay in the first-level
// cache, all threads of the context together: the yardstick of the benchmark. `dtype` is float32, or bfloat16 where the
// instruction set has products for it.
double micro_kernel_gflops(DType dtype, ExecContext& context);

}  // namespace warpgrad::cpu
