#pragma once

// The register-blocked inner loops of every matrix product in this backend.
//
// One call computes a tile of kRows rows × kVecs vectors in registers, acc[r][v] += Σ_k a(r, k) · b(k, v): an element
// of `a` is broadcast and multiplied with the vectors of row k of `b`. The caller initialises and stores the
// accumulators, which is where scaling, masks and conversions go.

#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

// The tile that fills the registers: accumulators, kMicroVecs vectors of b and one broadcast. 8 × 2 already runs at the
// full rate with 32 registers, divides the usual sizes, and leaves addresses of 8 rows in general registers.
#if defined(__AVX512F__)
constexpr int kMicroRows = 8;
#else
constexpr int kMicroRows = 6;
#endif
constexpr int kMicroVecs = 2;
constexpr int kMicroColumns = kMicroVecs * kLanes;

// How the elements of `a` lie in memory.
enum class AOrder {
  kRowMajor,     // a(r, k) = a[r * lda + k]
  kColumnMajor,  // a(r, k) = a[k * lda + r]
};

template <int kRows, int kVecs>
WARPGRAD_INLINE void zero(Vec (&acc)[kRows][kVecs]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec{};
  }
}

// b(k, v) = load_b(k, v), which is also where a ragged last vector is handled.
template <AOrder kOrder, int kRows, int kVecs, class LoadB>
WARPGRAD_INLINE void multiply_with(int64_t depth, const float* a, int64_t lda, LoadB load_b, Vec (&acc)[kRows][kVecs]) {
  for (int64_t k = 0; k < depth; ++k) {
    Vec b[kVecs];
    for (int v = 0; v < kVecs; ++v) b[v] = load_b(k, v);
    for (int r = 0; r < kRows; ++r) {
      const Vec broadcast = splat(kOrder == AOrder::kRowMajor ? a[r * lda + k] : a[k * lda + r]);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = fma(broadcast, b[v], acc[r][v]);
    }
  }
}

// b(k, v) = b[k * ldb + v * kLanes ...]
template <AOrder kOrder, int kRows, int kVecs>
WARPGRAD_INLINE void multiply(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                              Vec (&acc)[kRows][kVecs]) {
  const auto load_b = [=](int64_t k, int v) __attribute__((always_inline)) { return load(b + k * ldb + v * kLanes); };
  multiply_with<kOrder>(depth, a, lda, load_b, acc);
}

// A pair of bfloat16 numbers; may_alias because packed operands of both kinds share their buffers.
typedef uint32_t PairWord __attribute__((may_alias));

#if defined(__AVX512BF16__)
constexpr bool kHasBf16Products = true;

// The same with bfloat16 operands in pairs along k: an element of a(r, p) and of b(p, lane) is a 32-bit word that holds
// k = 2p in its low half and k = 2p + 1 in its high half; depth, lda and ldb count pairs.
// NOTE: the instruction takes subnormal operands as 0 and flushes subnormal results.
template <AOrder kOrder, int kRows, int kVecs>
WARPGRAD_INLINE void multiply_pairs(int64_t depth, const PairWord* a, int64_t lda, const PairWord* b, int64_t ldb,
                                    Vec (&acc)[kRows][kVecs]) {
  for (int64_t p = 0; p < depth; ++p) {
    __m512i pairs[kVecs];
    for (int v = 0; v < kVecs; ++v) pairs[v] = _mm512_loadu_si512(b + p * ldb + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const uint32_t word = kOrder == AOrder::kRowMajor ? a[r * lda + p] : a[p * lda + r];
      const __m512i broadcast = _mm512_set1_epi32(static_cast<int>(word));
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = (Vec)_mm512_dpbf16_ps((__m512)acc[r][v], (__m512bh)broadcast, (__m512bh)pairs[v]);
      }
    }
  }
}
#else
constexpr bool kHasBf16Products = false;
#endif

}  // namespace warpgrad::cpu::WARPGRAD_ISA
