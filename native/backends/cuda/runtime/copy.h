#pragma once

#include <cuda_runtime_api.h>

#include "core/tensor_view.h"

namespace warpgrad::cuda {

// dst = src converted to dst's dtype, on the device: equal shapes, any strides. Float to int32 truncates towards zero
// and saturates, NaN gives 0; other conversions round to nearest even.
void launch_copy_convert(const TensorView& dst, const TensorView& src, cudaStream_t stream);

}  // namespace warpgrad::cuda
