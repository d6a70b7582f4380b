#pragma once

#include <cstddef>
#include <string>

#include "core/check.h"

namespace warpgrad {

// What a failed allocation throws. `details` follow the number of bytes: what for, or how the memory is taken.
inline Error out_of_memory(const std::string& device, size_t bytes, const std::string& details) {
  return Error(ErrorCode::kOutOfMemory, concat(device, ": can't allocate ", bytes, " bytes", details,
                                               "; dispose of tensors that are no longer needed, or split the work"));
}

}  // namespace warpgrad
