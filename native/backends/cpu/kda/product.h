#pragma once

// The matrix product of the KDA kernels: C = A B, C + A B or C - A B for small float32 matrices that lie in cache. A is
// read one element at a time, so it may have any strides; the rows of B and C are dense. M and N are multiples of 16.
// Every element of C is one chain of fused multiply-adds in the order of the inner dimension: its bits don't depend on
// M, N, or on where its tile lies.

#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

enum class Into { kStore, kAdd, kSubtract };

struct Left {
  const float* data;
  int64_t row_stride, column_stride;
};
WARPGRAD_INLINE Left rows_of(const float* data, int64_t stride) { return {data, stride, 1}; }
WARPGRAD_INLINE Left columns_of(const float* data, int64_t stride) { return {data, 1, stride}; }  // the transpose

#if defined(__AVX512F__)
constexpr int kTileRows = 8, kTileVecs = 3;
#else
constexpr int kTileRows = 4, kTileVecs = 2;
#endif

template <Into kInto, int kVecs>
WARPGRAD_INLINE void product_tile(int inner, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  Vec acc[kTileRows][kVecs];
  for (int r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = kInto == Into::kStore ? Vec{} : load(c + r * c_stride + v * kLanes);
  }
  for (int p = 0; p < inner; ++p) {
    Vec b_row[kVecs];
    for (int v = 0; v < kVecs; ++v) b_row[v] = load(b + p * b_stride + v * kLanes);
    const float* a_column = a.data + p * a.column_stride;
    for (int r = 0; r < kTileRows; ++r) {
      const Vec a_element = splat(a_column[r * a.row_stride]);
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = fma(kInto == Into::kSubtract ? -a_element : a_element, b_row[v], acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(c + r * c_stride + v * kLanes, acc[r][v]);
  }
}

template <Into kInto, int kVecs>
inline void product_columns(int m, int inner, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  for (int i = 0; i < m; i += kTileRows) {
    const Left a_rows{a.data + i * a.row_stride, a.row_stride, a.column_stride};
    product_tile<kInto, kVecs>(inner, a_rows, b, b_stride, c + i * c_stride, c_stride);
  }
}

template <Into kInto>
inline void product(int m, int n, int inner, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  int num_vecs = n / kLanes;
  while (num_vecs > 0) {
    // Not 3 + 1 for 4 vectors: a narrow tile is the slower one.
    const int vecs = num_vecs >= kTileVecs && num_vecs != 4 ? kTileVecs : (num_vecs >= 2 ? 2 : 1);
    if (vecs == 3) {
      product_columns<kInto, 3>(m, inner, a, b, b_stride, c, c_stride);
    } else if (vecs == 2) {
      product_columns<kInto, 2>(m, inner, a, b, b_stride, c, c_stride);
    } else {
      product_columns<kInto, 1>(m, inner, a, b, b_stride, c, c_stride);
    }
    b += vecs * kLanes;
    c += vecs * kLanes;
    num_vecs -= vecs;
  }
}

// to[j][i] = from[i][j]; both sizes multiples of 16.
inline void transpose_matrix(int rows, int columns, const float* from, int64_t from_stride, float* to, int64_t to_stride) {
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
