#pragma once

// The two ways to multiply, under one interface: float32, and bfloat16 pairs with float32 sums.

#include "backends/cpu/attention/block.h"
#include "backends/cpu/simd/micro_kernel.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

using namespace attention;

// Which operand of a guarded product holds the weights.
enum class Weights { kLeft, kRight };

struct FloatProducts {
  using Word = float;
  static constexpr int kPerWord = 1;
  static constexpr bool kInTiles = false;
  static constexpr int kKeyStep = 1;  // keys that tiles must start at multiples of

  template <AOrder kOrder, int kRows, int kVecs>
  WARPGRAD_INLINE void multiply(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                                Vec (&acc)[kRows][kVecs]) {
    WARPGRAD_ISA::multiply<kOrder>(depth, a, lda, b, ldb, acc);
  }

  // Like multiply, but where a weight is 0 an infinite or NaN factor adds nothing.
  template <AOrder kOrder, Weights kWeights, int kRows, int kVecs>
  WARPGRAD_INLINE void multiply_guarded(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                                        Vec (&acc)[kRows][kVecs]) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int r = 0; r < kRows; ++r) {
        const Vec left = splat(a[kOrder == AOrder::kRowMajor ? r * lda + k : k * lda + r]);
        for (int v = 0; v < kVecs; ++v) {
          const Vec right = load(b + k * ldb + v * kLanes);
          const Vec weight = kWeights == Weights::kLeft ? left : right;
          const Vec factor = kWeights == Weights::kLeft ? right : left;
          acc[r][v] = fma(weight == 0.0f ? Vec{} : factor, weight, acc[r][v]);
        }
      }
    }
  }

  // -1 in the lanes whose word holds an infinity or NaN.
  WARPGRAD_INLINE IVec non_finite(Vec words) { return (bits_of(words) & 0x7f800000) == 0x7f800000; }
};

#if defined(__AVX512BF16__)
struct PairProducts {
  using Word = PairWord;
  static constexpr int kPerWord = 2;
  static constexpr bool kInTiles = false;
  static constexpr int kKeyStep = 2;

  template <AOrder kOrder, int kRows, int kVecs>
  WARPGRAD_INLINE void multiply(int64_t depth, const PairWord* a, int64_t lda, const PairWord* b, int64_t ldb,
                                Vec (&acc)[kRows][kVecs]) {
    multiply_pairs<kOrder>(depth, a, lda, b, ldb, acc);
  }

  template <AOrder kOrder, Weights kWeights, int kRows, int kVecs>
  WARPGRAD_INLINE void multiply_guarded(int64_t depth, const PairWord* a, int64_t lda, const PairWord* b, int64_t ldb,
                                        Vec (&acc)[kRows][kVecs]) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int r = 0; r < kRows; ++r) {
        const PairWord word = a[kOrder == AOrder::kRowMajor ? r * lda + k : k * lda + r];
        const __m512i left = _mm512_set1_epi32(static_cast<int>(word));
        for (int v = 0; v < kVecs; ++v) {
          const __m512i right = _mm512_loadu_si512(b + k * ldb + v * kLanes);
          const __m512i weights = kWeights == Weights::kLeft ? left : right;
          const __m512i factors = kWeights == Weights::kLeft ? right : left;
          const __m512i guarded = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(weights, weights), factors);
          acc[r][v] = (Vec)_mm512_dpbf16_ps((__m512)acc[r][v], (__m512bh)guarded, (__m512bh)weights);
        }
      }
    }
  }

  WARPGRAD_INLINE IVec non_finite(Vec words) {
    const IVec bits = bits_of(words);
    return ((bits & 0x7f80) == 0x7f80) | ((bits & 0x7f800000) == 0x7f800000);
  }

  // 0 for the halves of words that are infinite or NaN.
  WARPGRAD_INLINE Vec finite_part(Vec words) {
    const IVec bits = bits_of(words);
    const IVec low = (bits & 0x7f80) == 0x7f80, high = (bits & 0x7f800000) == 0x7f800000;
    return float_of_bits(bits & ~((low & 0xffff) | (high & static_cast<int32_t>(0xffff0000))));
  }
};

// Words of (low, high), rounded to nearest even; subnormal numbers become 0.
WARPGRAD_INLINE Vec interleave_bfloat16(Vec low, Vec high) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (Vec)_mm512_maskz_permutexvar_epi16(~0u, _mm512_load_si512(kOrder), both);
}
#endif

// Calls run.operator()<kRows>(row) for groups that cover [0, m): full micro-kernels, then the remainder in halves.
template <class Run>
WARPGRAD_INLINE void for_row_groups(int64_t m, Run run) {
  int64_t row = 0;
  for (; m - row >= kMicroRows; row += kMicroRows) run.template operator()<kMicroRows>(row);
  if (m - row >= 4) {
    run.template operator()<4>(row);
    row += 4;
  }
  if (m - row >= 2) {
    run.template operator()<2>(row);
    row += 2;
  }
  if (m - row >= 1) run.template operator()<1>(row);
}

// Calls run.operator()<vecs>(v) for panels that cover num_vecs vectors of columns.
template <class Run>
WARPGRAD_INLINE void for_panels(int num_vecs, Run run) {
  static_assert(kMicroVecs == 2);
  int v = 0;
  for (; v + 2 <= num_vecs; v += 2) run.template operator()<2>(v);
  if (v < num_vecs) run.template operator()<1>(v);
}

// Whether a matrix of words is free of infinities and NaN.
template <class Products>
static bool all_finite(const typename Products::Word* words, int64_t ld, int64_t num_rows, int64_t num_columns) {
  IVec found{};
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < num_columns; i += kLanes) {
      const float* from = reinterpret_cast<const float*>(words + row * ld + i);
      const int64_t rest = num_columns - i;
      found |= Products::non_finite(rest >= kLanes ? load(from) : load_partial(from, static_cast<int>(rest)));
    }
  }
  return !any(found);
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
