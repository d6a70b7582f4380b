#pragma once

// Vectors of kLanes floats for the *.isa.cc units, one width for each instruction set. GCC's vector operators (+, *, <,
// ?: and so on) work on Vec and IVec everywhere; the functions here are what the operators lack.
// NOTE: for *.isa.cc units only; everything has internal linkage or lives in the namespace of the instruction set.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/float_bits.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IVec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UVec __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * kLanes)));  // 16-bit floats, or their bits

#define WARPGRAD_INLINE static inline __attribute__((always_inline))

WARPGRAD_INLINE Vec splat(float value) {
  return value - Vec{};
}  // x - 0 is exact, also for -0
WARPGRAD_INLINE IVec splat_int(int32_t value) {
  return value + IVec{};
}
WARPGRAD_INLINE IVec bits_of(Vec x) {
  return (IVec)x;
}
WARPGRAD_INLINE Vec float_of_bits(IVec x) {
  return (Vec)x;
}
WARPGRAD_INLINE Vec to_float(IVec x) {
  return __builtin_convertvector(x, Vec);
}

// 0, 1, 2, ...
WARPGRAD_INLINE IVec lane_numbers() {
  IVec lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// ---- Loads and stores, at any alignment; the *_partial ones touch the first `count` elements only (0..kLanes) ------
WARPGRAD_INLINE Vec load(const float* from) {
  Vec x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
WARPGRAD_INLINE void store(float* to, Vec x) {
  std::memcpy(to, &x, sizeof(x));
}

#if defined(__AVX512F__)
// For the zero-masking forms of intrinsics whose plain forms make GCC 12 warn about its own uninitialised values.
constexpr __mmask16 kAllLanes = 0xffff;
WARPGRAD_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>((1u << count) - 1u);
}
WARPGRAD_INLINE Vec load_partial(const float* from, int count) {
  return (Vec)_mm512_maskz_loadu_ps(first_lanes(count), from);
}
WARPGRAD_INLINE void store_partial(float* to, Vec x, int count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)x);
}
WARPGRAD_INLINE HalfVec load_half_partial(const uint16_t* from, int count) {
  return (HalfVec)_mm256_maskz_loadu_epi16(first_lanes(count), from);
}
WARPGRAD_INLINE void store_half_partial(uint16_t* to, HalfVec x, int count) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), (__m256i)x);
}
#else
#if defined(__AVX2__)
WARPGRAD_INLINE Vec load_partial(const float* from, int count) {
  return (Vec)_mm256_maskload_ps(from, (__m256i)(lane_numbers() < splat_int(count)));
}
WARPGRAD_INLINE void store_partial(float* to, Vec x, int count) {
  _mm256_maskstore_ps(to, (__m256i)(lane_numbers() < splat_int(count)), (__m256)x);
}
#else
WARPGRAD_INLINE Vec load_partial(const float* from, int count) {
  Vec x{};
  for (int i = 0; i < count; ++i) x[i] = from[i];
  return x;
}
WARPGRAD_INLINE void store_partial(float* to, Vec x, int count) {
  for (int i = 0; i < count; ++i) to[i] = x[i];
}
#endif
WARPGRAD_INLINE HalfVec load_half_partial(const uint16_t* from, int count) {
  HalfVec x{};
  for (int i = 0; i < count; ++i) x[i] = from[i];
  return x;
}
WARPGRAD_INLINE void store_half_partial(uint16_t* to, HalfVec x, int count) {
  for (int i = 0; i < count; ++i) to[i] = x[i];
}
#endif
WARPGRAD_INLINE HalfVec load_half(const uint16_t* from) {
  HalfVec x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
WARPGRAD_INLINE void store_half(uint16_t* to, HalfVec x) {
  std::memcpy(to, &x, sizeof(x));
}

// ---- Arithmetic ----------------------------------------------------------------------------------------------------
// x · y rounded, which the compiler may not merge with a later sum.
WARPGRAD_INLINE Vec rounded_product(Vec x, Vec y) {
  Vec product = x * y;
#if defined(__AVX512F__)
  asm("" : "+v"(product));
#elif defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

// Whether a comparison holds in some lane.
WARPGRAD_INLINE bool any(IVec lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
  int32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= lanes[i];
  return bits != 0;
#endif
}

// max and min answer y where x is NaN or y is NaN, so a NaN in y passes through and one in x is dropped.
#if defined(__AVX512F__)
WARPGRAD_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return (Vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
}
WARPGRAD_INLINE Vec max(Vec x, Vec y) {
  return (Vec)_mm512_maskz_max_ps(kAllLanes, (__m512)x, (__m512)y);
}
WARPGRAD_INLINE Vec min(Vec x, Vec y) {
  return (Vec)_mm512_maskz_min_ps(kAllLanes, (__m512)x, (__m512)y);
}
WARPGRAD_INLINE Vec sqrt(Vec x) {
  return (Vec)_mm512_maskz_sqrt_ps(kAllLanes, (__m512)x);
}
#elif defined(__AVX2__)
WARPGRAD_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return (Vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
}
WARPGRAD_INLINE Vec max(Vec x, Vec y) {
  return (Vec)_mm256_max_ps((__m256)x, (__m256)y);
}
WARPGRAD_INLINE Vec min(Vec x, Vec y) {
  return (Vec)_mm256_min_ps((__m256)x, (__m256)y);
}
WARPGRAD_INLINE Vec sqrt(Vec x) {
  return (Vec)_mm256_sqrt_ps((__m256)x);
}
#else
WARPGRAD_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return x * y + z;
}  // two roundings where the processor has no FMA
WARPGRAD_INLINE Vec max(Vec x, Vec y) {
  return x > y ? x : y;
}
WARPGRAD_INLINE Vec min(Vec x, Vec y) {
  return x < y ? x : y;
}
WARPGRAD_INLINE Vec sqrt(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
#endif
WARPGRAD_INLINE Vec abs(Vec x) {
  return float_of_bits(bits_of(x) & 0x7fffffff);
}

namespace vec_detail {
constexpr int transposed_lane(int lane, int half, bool upper) {
  return (lane & half) != 0 ? kLanes + (upper ? lane : lane ^ half) : (upper ? lane ^ half : lane);
}
template <int kHalf, bool kUpper, int... kLane>
WARPGRAD_INLINE Vec transpose_step(Vec x, Vec y, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, y, transposed_lane(kLane, kHalf, kUpper)...);
}
template <int kHalf, int... kLane>
WARPGRAD_INLINE Vec swap_halves(Vec x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kHalf)...);
}
using Lanes = std::make_integer_sequence<int, kLanes>;

template <int kHalf>
WARPGRAD_INLINE void transpose_stage(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kHalf) != 0) continue;
    const Vec x = rows[i], y = rows[i | kHalf];
    rows[i] = transpose_step<kHalf, false>(x, y, Lanes());
    rows[i | kHalf] = transpose_step<kHalf, true>(x, y, Lanes());
  }
}
}  // namespace vec_detail

// rows[i][j] <-> rows[j][i]
WARPGRAD_INLINE void transpose(Vec (&rows)[kLanes]) {
  vec_detail::transpose_stage<1>(rows);
  vec_detail::transpose_stage<2>(rows);
  if constexpr (kLanes > 4) vec_detail::transpose_stage<4>(rows);
  if constexpr (kLanes > 8) vec_detail::transpose_stage<8>(rows);
}

// Sum and maximum of the lanes, in an order fixed by kLanes.
template <class Combine>
WARPGRAD_INLINE float reduce(Vec x, Combine combine) {
  using vec_detail::Lanes;
  if constexpr (kLanes > 8) x = combine(x, vec_detail::swap_halves<8>(x, Lanes()));
  if constexpr (kLanes > 4) x = combine(x, vec_detail::swap_halves<4>(x, Lanes()));
  x = combine(x, vec_detail::swap_halves<2>(x, Lanes()));
  x = combine(x, vec_detail::swap_halves<1>(x, Lanes()));
  return x[0];
}
WARPGRAD_INLINE float reduce_add(Vec x) {
  return reduce(x, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
}
WARPGRAD_INLINE float reduce_max(Vec x) {
  return reduce(x, [](Vec a, Vec b) __attribute__((always_inline)) { return max(a, b); });
}

// ---- 16-bit floats: round to nearest even, NaN stays NaN -----------------------------------------------------------
WARPGRAD_INLINE Vec from_bfloat16(HalfVec x) {
  return (Vec)(__builtin_convertvector(x, UVec) << 16);
}

WARPGRAD_INLINE HalfVec to_bfloat16(Vec x) {
  const UVec bits = (UVec)x;
  const UVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const UVec quiet_nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded, HalfVec);
}

#if defined(__AVX512F__)
WARPGRAD_INLINE Vec from_float16(HalfVec x) {
  return (Vec)_mm512_maskz_cvtph_ps(kAllLanes, (__m256i)x);
}
WARPGRAD_INLINE HalfVec to_float16(Vec x) {
  return (HalfVec)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__AVX2__)
WARPGRAD_INLINE Vec from_float16(HalfVec x) {
  return (Vec)_mm256_cvtph_ps((__m128i)x);
}
WARPGRAD_INLINE HalfVec to_float16(Vec x) {
  return (HalfVec)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
}
#else
WARPGRAD_INLINE Vec from_float16(HalfVec x) {
  Vec result;
  for (int i = 0; i < kLanes; ++i) result[i] = float16_to_float(x[i]);
  return result;
}
WARPGRAD_INLINE HalfVec to_float16(Vec x) {
  HalfVec result;
  for (int i = 0; i < kLanes; ++i) result[i] = float_to_float16(x[i]);
  return result;
}
#endif

}  // namespace warpgrad::cpu::WARPGRAD_ISA
