#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/dtype.h"

namespace warpgrad {

constexpr int kMaxRank = 8;

// A strided window on memory that somebody else owns. Strides are in elements and may be 0 or negative.
struct TensorView {
  void* data = nullptr;  // the first element; nullptr stands for an absent optional tensor
  DType dtype = DType::kFloat32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  explicit operator bool() const { return data != nullptr; }

  int64_t num_elems() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }

  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }

  // Equal but for the address.
  bool same_layout(const TensorView& other) const {
    return dtype == other.dtype && rank == other.rank &&
           std::equal(shape.begin(), shape.begin() + rank, other.shape.begin()) &&
           std::equal(strides.begin(), strides.begin() + rank, other.strides.begin());
  }

  // Sets the strides of a contiguous row-major tensor of this shape.
  void set_contiguous_strides() {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }

  template <class Element>
  Element* as() const {
    return static_cast<Element*>(data);
  }
};

}  // namespace warpgrad
