#pragma once

// Rows of tensors of any dtype, to and from float32 rows padded with zeros to a multiple of 16.

#include "backends/cpu/kda/problem.h"
#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

WARPGRAD_INLINE int smaller(int x, int y) {
  return x < y ? x : y;
}

WARPGRAD_INLINE int64_t offset_of(const kda::Operand& x, int64_t i0, int64_t i1, int64_t i2) {
  return i0 * x.strides[0] + i1 * x.strides[1] + i2 * x.strides[2];
}

// to[0..count) = from[offset..), zeros up to the padded count.
inline void load_row(const kda::Operand& from, int64_t offset, int count, float* to) {
  const int full = kda::padded(count);
  if (from.dtype == DType::kFloat32) {
    const float* source = static_cast<const float*>(from.data) + offset;
    for (int i = 0; i < full; i += kLanes) {
      const int left = count - i;
      store(to + i, left >= kLanes ? load(source + i) : left > 0 ? load_partial(source + i, left) : Vec{});
    }
    return;
  }
  const uint16_t* source = static_cast<const uint16_t*>(from.data) + offset;
  const bool bfloat16 = from.dtype == DType::kBFloat16;
  for (int i = 0; i < full; i += kLanes) {
    const int left = count - i;
    const HalfVec bits = left >= kLanes ? load_half(source + i)
                         : left > 0     ? load_half_partial(source + i, left)
                                        : HalfVec{};
    store(to + i, bfloat16 ? from_bfloat16(bits) : from_float16(bits));
  }
}

inline void store_row(const kda::Operand& to, int64_t offset, int count, const float* from) {
  if (to.dtype == DType::kFloat32) {
    float* target = static_cast<float*>(to.data) + offset;
    for (int i = 0; i < count; i += kLanes) {
      if (count - i >= kLanes) {
        store(target + i, load(from + i));
      } else {
        store_partial(target + i, load(from + i), count - i);
      }
    }
    return;
  }
  uint16_t* target = static_cast<uint16_t*>(to.data) + offset;
  const bool bfloat16 = to.dtype == DType::kBFloat16;
  for (int i = 0; i < count; i += kLanes) {
    const Vec x = load(from + i);
    const HalfVec bits = bfloat16 ? to_bfloat16(x) : to_float16(x);
    if (count - i >= kLanes) {
      store_half(target + i, bits);
    } else {
      store_half_partial(target + i, bits, count - i);
    }
  }
}

inline void zero_rows(int first, int last, int columns, float* to, int64_t stride) {
  for (int i = first; i < last; ++i) {
    for (int j = 0; j < columns; j += kLanes) store(to + i * stride + j, Vec{});
  }
}

// Rows `chunk` of one head, columns [first_column, first_column + count), zero rows up to a multiple of 16.
inline void load_chunk_rows(const kda::Operand& from, const kda::Chunk& chunk, int64_t head, int first_column,
                            int count, float* to, int64_t stride) {
  for (int i = 0; i < chunk.rows; ++i) {
    load_row(from, offset_of(from, chunk.batch, chunk.token + i, head) + first_column, count, to + i * stride);
  }
  zero_rows(chunk.rows, kda::padded(chunk.rows), kda::padded(count), to, stride);
}

inline void store_chunk_rows(const kda::Operand& to, const kda::Chunk& chunk, int64_t head, int first_column, int count,
                             const float* from, int64_t stride) {
  for (int i = 0; i < chunk.rows; ++i) {
    store_row(to, offset_of(to, chunk.batch, chunk.token + i, head) + first_column, count, from + i * stride);
  }
}

// r = (sum x^2 + 1e-6)^-1/2 of a row as shrink · inverse. Where the sum overflows, x itself is multiplied by `shrink`,
// beside which the 1e-6 doesn't count; else shrink is 1.
struct RowNorm {
  float shrink;
  Vec inverse;
};

WARPGRAD_INLINE float sum_of_squares(int Kp, const float* x) {
  Vec squares{};
  for (int d = 0; d < Kp; d += kLanes) squares = fma(load(x + d), load(x + d), squares);
  return reduce_add(squares);
}

WARPGRAD_INLINE RowNorm norm_of_row(int Kp, float* x) {
  constexpr float kShrink = 0x1p-70f;  // the squares of 256 numbers up to 2^128 then add up to 2^124 at most
  float sum = sum_of_squares(Kp, x) + kda::kNormEpsilon;
  const bool large = sum == __builtin_inff();
  if (large) {
    for (int d = 0; d < Kp; d += kLanes) store(x + d, load(x + d) * kShrink);
    sum = sum_of_squares(Kp, x);
  }
  return {large ? kShrink : 1.0f, 1.0f / sqrt(splat(sum))};
}

// to[i] = beta_i from[i], over `columns` (a multiple of 16).
WARPGRAD_INLINE void scale_rows(int rows, int columns, const float* beta, const float* from, float* to,
                                int64_t stride) {
  for (int i = 0; i < rows; ++i) {
    const Vec factor = splat(beta[i]);
    for (int j = 0; j < columns; j += kLanes) store(to + i * stride + j, factor * load(from + i * stride + j));
  }
}

}  // namespace
}  // namespace warpgrad::cpu::WARPGRAD_ISA
