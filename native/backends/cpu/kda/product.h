#pragma once

// The matrix product of the KDA kernels: C = A B, C + A B or C - A B for small float32 matrices that lie in cache, A by
// rows or by columns. Unlike simd/gemm.h it subtracts, and it takes sides that are multiples of 16 only, so that the
// small products of a chunk don't pay for ragged edges. Every element of C is one chain of multiply-adds in the order
// of the inner dimension: its bits don't depend on m, n, or on where its tile lies.

#include "backends/cpu/kda/prefetch.h"
#include "backends/cpu/simd/micro_kernel.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

enum class Into { kStore, kAdd, kSubtract };

struct Left {
  const float* data;
  int64_t stride;
  AOrder order;
};
WARPGRAD_INLINE Left rows_of(const float* data, int64_t stride) {
  return {data, stride, AOrder::kRowMajor};
}
WARPGRAD_INLINE Left columns_of(const float* data, int64_t stride) {
  return {data, stride, AOrder::kColumnMajor};
}

// Divides 16 rows, unlike the 6 of kMicroRows.
constexpr int kTileRows = kMicroRows == 8 ? 8 : 4;

template <Into kInto, AOrder kOrder, int kVecs>
inline void product_columns(int m, int inner, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                            float* c, int64_t c_stride, kda::Prefetch* ahead) {
  for (int i = 0; i < m; i += kTileRows) {
    fetch_ahead(ahead);
    Vec acc[kTileRows][kVecs];
    float* c_tile = c + i * c_stride;
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        // C - A B is -(-C + A B), to the bit.
        const Vec before = kInto == Into::kStore ? Vec{} : load(c_tile + r * c_stride + v * kLanes);
        acc[r][v] = kInto == Into::kSubtract ? -before : before;
      }
    }
    multiply<kOrder>(inner, a + (kOrder == AOrder::kRowMajor ? i * a_stride : i), a_stride, b, b_stride, acc);
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        store(c_tile + r * c_stride + v * kLanes, kInto == Into::kSubtract ? -acc[r][v] : acc[r][v]);
      }
    }
  }
}

template <Into kInto, AOrder kOrder>
inline void product_in_order(int m, int n, int inner, const float* a, int64_t a_stride, const float* b,
                             int64_t b_stride, float* c, int64_t c_stride, kda::Prefetch* ahead) {
  int j = 0;
  for (; j + kMicroColumns <= n; j += kMicroColumns) {
    product_columns<kInto, kOrder, kMicroVecs>(m, inner, a, a_stride, b + j, b_stride, c + j, c_stride, ahead);
  }
  for (; j < n; j += kLanes) {
    product_columns<kInto, kOrder, 1>(m, inner, a, a_stride, b + j, b_stride, c + j, c_stride, ahead);
  }
}

template <Into kInto>
inline void product(int m, int n, int inner, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                    kda::Prefetch* ahead) {
  if (a.order == AOrder::kRowMajor) {
    product_in_order<kInto, AOrder::kRowMajor>(m, n, inner, a.data, a.stride, b, b_stride, c, c_stride, ahead);
  } else {
    product_in_order<kInto, AOrder::kColumnMajor>(m, n, inner, a.data, a.stride, b, b_stride, c, c_stride, ahead);
  }
}

inline bool all_finite(int rows, int columns, const float* x, int64_t stride) {
  IVec not_finite{};
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; j += kLanes) {
      const Vec value = load(x + i * stride + j);
      not_finite |= value - value != 0.0f;
    }
  }
  return !any(not_finite);
}

// The product with a lower triangular L [rows, rows], by blocks of 16 rows. Inside a diagonal block the products with
// L's zeros would carry a NaN or an infinity of a later token to an earlier one: such blocks go row by row.
template <Into kInto>
inline void lower_product(int rows, int columns, const float* L, int64_t L_stride, const float* b, float* c,
                          int64_t stride, kda::Prefetch* ahead) {
  constexpr int kRows = 16;
  for (int first = 0; first < rows; first += kRows) {
    const float* L_rows = L + first * L_stride;
    float* c_rows = c + first * stride;
    if (all_finite(kRows, columns, b + first * stride, stride)) {
      product<kInto>(kRows, columns, first + kRows, rows_of(L_rows, L_stride), b, stride, c_rows, stride, ahead);
      continue;
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < columns; j += kLanes) {
        const Vec before = kInto == Into::kStore ? Vec{} : load(c_rows + i * stride + j);
        Vec sum = kInto == Into::kSubtract ? -before : before;
        for (int p = 0; p <= first + i; ++p) {
          sum = fma(splat(L_rows[i * L_stride + p]), load(b + p * stride + j), sum);
        }
        store(c_rows + i * stride + j, kInto == Into::kSubtract ? -sum : sum);
      }
    }
  }
}

// to[j][i] = from[i][j]; both sizes multiples of 16.
inline void transpose_matrix(int rows, int columns, const float* from, int64_t from_stride, float* to,
                             int64_t to_stride) {
  for (int i = 0; i < rows; i += kLanes) {
    for (int j = 0; j < columns; j += kLanes) {
      Vec tile[kLanes];
      for (int r = 0; r < kLanes; ++r) tile[r] = load(from + (i + r) * from_stride + j);
      transpose(tile);
      for (int r = 0; r < kLanes; ++r) store(to + (j + r) * to_stride + i, tile[r]);
    }
  }
}

}  // namespace
}  // namespace warpgrad::cpu::WARPGRAD_ISA
