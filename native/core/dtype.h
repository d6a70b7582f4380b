#pragma once

#include <cstddef>
#include <cstdint>

namespace warpgrad {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kInt32 };

constexpr size_t dtype_bytes(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? 2 : 4;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt32: return "int32";
  }
  return "unknown";
}

}  // namespace warpgrad
