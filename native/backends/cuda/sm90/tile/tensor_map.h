#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

// One dimension of a tensor map, innermost first. The stride is in elements; the innermost one's is 1.
struct TensorMapDim {
  int64_t size;
  int64_t stride;
  int box;  // elements that one copy moves
};

constexpr int64_t kTensorMapAlignment = 16;  // bytes: of the address and of every stride

// A map of 16-bit or float32 elements for copies with 128-byte swizzle, so the innermost box is at most 128 bytes. Out
// of bounds, loads give zeros and stores do nothing. Throws Error when the driver refuses it.
CUtensorMap make_tensor_map(const char* operation, DType dtype, const void* base,
                            const std::vector<TensorMapDim>& dims);

}  // namespace warpgrad::cuda::sm90
