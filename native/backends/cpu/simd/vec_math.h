#pragma once

// Elementary functions on Vec. NaN in gives NaN out; the stated errors are the largest over all floats (README.md).

#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
// ln 2 in two parts: the first has few bits, so that an integer times it is exact.
constexpr float kLn2High = 0x1.62e4p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;

namespace vec_detail {

// Nearest integer, |x| < 2^22.
WARPGRAD_INLINE Vec round_to_integer(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_roundscale_ps(kAllLanes, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (Vec)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Vec magic = splat(0x1.8p23f);
  return (x + magic) - magic;
#endif
}

WARPGRAD_INLINE IVec to_int(Vec x) {
#if defined(__AVX512F__)
  return (IVec)_mm512_maskz_cvtps_epi32(kAllLanes, (__m512)x);
#elif defined(__AVX2__)
  return (IVec)_mm256_cvtps_epi32((__m256)x);
#else
  return bits_of(x + splat(0x1.8p23f)) - 0x4b400000;
#endif
}

// x · 2^n for an integer-valued n in [-160, 160], rounded once where the result is normal.
WARPGRAD_INLINE Vec scale_by_power(Vec x, Vec n) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_scalef_ps(kAllLanes, (__m512)x, (__m512)n);
#else
  const IVec whole = to_int(n);
  const IVec half = whole >> 1;
  return x * float_of_bits((half + 127) << 23) * float_of_bits((whole - half + 127) << 23);
#endif
}

}  // namespace vec_detail

namespace vec_detail {

// 2^f for |f| <= 1/2, exactly 1 for 0. Relative error: 9e-9, or 8e-6 with the short polynomial.
template <bool kShort>
WARPGRAD_INLINE Vec exp2_of_fraction(Vec f) {
  Vec p;
  if constexpr (kShort) {
    p = fma(splat(0x1.3cbf6cp-7f), f, splat(0x1.c96d7ep-5f));
    p = fma(p, f, splat(0x1.ebfa4ap-3f));
    p = fma(p, f, splat(0x1.62e2d2p-1f));
  } else {
    p = fma(splat(0x1.444004p-13f), f, splat(0x1.5f0896p-10f));
    p = fma(p, f, splat(0x1.3b2a1cp-7f));
    p = fma(p, f, splat(0x1.c6af6cp-5f));
    p = fma(p, f, splat(0x1.ebfbe0p-3f));
    p = fma(p, f, splat(0x1.62e430p-1f));
  }
  return fma(p, f, splat(1.0f));
}

}  // namespace vec_detail

// 2^x: within 1.5 ulp, exact for integers; -inf gives 0.
WARPGRAD_INLINE Vec exp2(Vec x) {
  x = min(splat(129.0f), max(splat(-151.0f), x));
  const Vec n = vec_detail::round_to_integer(x);
  return vec_detail::scale_by_power(vec_detail::exp2_of_fraction<false>(x - n), n);
}

// 2^x for x <= 1. kShort: to a relative error of 8e-6 only, for results that are rounded to 16 bits.
template <bool kShort>
WARPGRAD_INLINE Vec exp2_bounded(Vec x) {
  x = max(splat(-151.0f), x);
  const Vec n = vec_detail::round_to_integer(x);
  return vec_detail::scale_by_power(vec_detail::exp2_of_fraction<kShort>(x - n), n);
}

namespace vec_detail {

// e^x - 1 = 2^n (1 + tail) - 1 with |tail| < 0.42.
struct ExpParts {
  Vec n, tail;
};
WARPGRAD_INLINE ExpParts exp_parts(Vec x) {
  x = min(splat(90.0f), max(splat(-105.0f), x));
  const Vec n = round_to_integer(x * kLog2E);
  const Vec r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  Vec p = splat(0x1.6d4926p-10f);
  p = fma(p, r, splat(0x1.121072p-7f));
  p = fma(p, r, splat(0x1.5554e4p-5f));
  p = fma(p, r, splat(0x1.5554d8p-3f));
  p = fma(p, r, splat(0x1.000000p-1f));
  return {n, fma(p * r, r, r)};
}

// log((1 + s) / (1 - s)) for |s| <= 1/3
WARPGRAD_INLINE Vec log_of_ratio(Vec s) {
  const Vec t = s * s;
  Vec p = splat(2.0f / 15);
  p = fma(p, t, splat(2.0f / 13));
  p = fma(p, t, splat(2.0f / 11));
  p = fma(p, t, splat(2.0f / 9));
  p = fma(p, t, splat(2.0f / 7));
  p = fma(p, t, splat(2.0f / 5));
  p = fma(p, t, splat(2.0f / 3));
  return fma(p * t, s, s + s);
}

}  // namespace vec_detail

// e^x: within 1.5 ulp; -inf gives 0.
WARPGRAD_INLINE Vec exp(Vec x) {
  const vec_detail::ExpParts parts = vec_detail::exp_parts(x);
  return vec_detail::scale_by_power(1.0f + parts.tail, parts.n);
}

// e^x - 1 for x <= 87: within 3 ulp, also near 0.
WARPGRAD_INLINE Vec expm1(Vec x) {
  const vec_detail::ExpParts parts = vec_detail::exp_parts(x);
  const Vec power = vec_detail::scale_by_power(splat(1.0f), parts.n);
  return fma(power, parts.tail, power - 1.0f);
}

// Natural logarithm of x > 0, normal: within 2 ulp. log(0) is -inf.
WARPGRAD_INLINE Vec log(Vec x) {
  const IVec exponent = (bits_of(x) - 0x3f3504f3) >> 23;  // so that x / 2^exponent lies in [sqrt(1/2), sqrt(2))
  const Vec m = float_of_bits(bits_of(x) - (exponent << 23));
  const Vec e = to_float(exponent);
  const Vec s = (m - 1.0f) / (m + 1.0f);
  const Vec result = fma(e, splat(kLn2High), fma(e, splat(kLn2Low), vec_detail::log_of_ratio(s)));
  const Vec infinity = splat(__builtin_inff());
  return x == 0.0f ? -infinity : (x < infinity ? result : x);
}

// log(1 + x) for 0 <= x <= 1: within 3 ulp, also near 0.
WARPGRAD_INLINE Vec log1p_unit(Vec x) {
  return vec_detail::log_of_ratio(x / (2.0f + x));
}

// Within 3 ulp, also near 0.
WARPGRAD_INLINE Vec tanh(Vec x) {
  const Vec t = expm1(2.0f * min(splat(10.0f), abs(x)));
  const Vec magnitude = t / (t + 2.0f);
  return float_of_bits(bits_of(magnitude) | (bits_of(x) & splat_int(INT32_MIN)));
}

// 1 / (1 + e^-x): within 3 ulp, also far below 0. 1 - sigmoid(x) is sigmoid(-x).
WARPGRAD_INLINE Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
