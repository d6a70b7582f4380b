#pragma once

// Copies of operand rows in the layouts of the micro-kernels, converted to words (block.h).

#include "backends/cpu/attention/block.h"
#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

using namespace attention;

// A source reads word vectors from a row: words [word, word + kLanes), zero where the row of `elems` elements ends.
struct FromFloat32 {
  using Element = float;
  static constexpr int kPerWord = 1;
  WARPGRAD_INLINE Vec words(const float* row, int64_t word, int64_t elems) {
    return elems - word >= kLanes ? load(row + word) : load_partial(row + word, static_cast<int>(elems - word));
  }
};

WARPGRAD_INLINE HalfVec load_halves(const uint16_t* row, int64_t first, int64_t elems) {
  const int64_t rest = elems - first;
  return rest >= kLanes ? load_half(row + first)
                        : load_half_partial(row + first, rest > 0 ? static_cast<int>(rest) : 0);
}

struct FromFloat16 {
  using Element = uint16_t;
  static constexpr int kPerWord = 1;
  WARPGRAD_INLINE Vec words(const uint16_t* row, int64_t word, int64_t elems) {
    return from_float16(load_halves(row, word, elems));
  }
};

struct FromBFloat16 {
  using Element = uint16_t;
  static constexpr int kPerWord = 1;
  WARPGRAD_INLINE Vec words(const uint16_t* row, int64_t word, int64_t elems) {
    return from_bfloat16(load_halves(row, word, elems));
  }
};

#if defined(__AVX512BF16__)
struct FromBFloat16Pairs {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  WARPGRAD_INLINE Vec words(const uint16_t* row, int64_t word, int64_t elems) {
    const int64_t rest = elems - 2 * word;
    const auto mask = static_cast<__mmask32>(rest >= 2 * kLanes ? ~0u : (1u << rest) - 1u);
    return (Vec)_mm512_maskz_loadu_epi16(mask, row + 2 * word);
  }
};
#endif

// Calls run with the source for the format.
template <class Run>
WARPGRAD_INLINE void with_source(Format format, Run run) {
#if defined(__AVX512BF16__)
  if (format.pairs) return run(FromBFloat16Pairs());
#endif
  switch (format.dtype) {
    case DType::kFloat16: return run(FromFloat16());
    case DType::kBFloat16: return run(FromBFloat16());
    default: return run(FromFloat32());
  }
}

WARPGRAD_INLINE int64_t words_of(Format format, int64_t elems) {
  return format.pairs ? (elems + 1) / 2 : elems;
}

// The sign to multiply packed words with.
struct WordSign {
  int32_t keep, flip;
};
WARPGRAD_INLINE WordSign word_sign(Format format, float sign) {
  const auto flip = static_cast<int32_t>(format.pairs ? 0x80008000u : 0x80000000u);
  return {sign == 0 ? 0 : -1, sign < 0 ? flip : 0};
}

// packed[word][row] from rows [first, first + num_rows): one row in each lane, zero in the lanes up to `columns`, which
// is a multiple of kLanes.
template <class Source>
static void pack_transposed(Rows rows, int64_t first, int num_rows, int64_t elems, WordSign sign, float* packed,
                            int64_t columns, int64_t ld) {
  const auto* data = static_cast<const typename Source::Element*>(rows.data) + first * rows.stride;
  const int64_t num_words = (elems + Source::kPerWord - 1) / Source::kPerWord;
  for (int lane = 0; lane < columns; lane += kLanes) {
    for (int64_t word = 0; word < num_words; word += kLanes) {
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        tile[i] = lane + i < num_rows ? Source::words(data + (lane + i) * rows.stride, word, elems) : Vec{};
      }
      transpose(tile);
      const int count = static_cast<int>(num_words - word < kLanes ? num_words - word : kLanes);
      for (int i = 0; i < count; ++i) {
        store(packed + (word + i) * ld + lane, float_of_bits((bits_of(tile[i]) & sign.keep) ^ sign.flip));
      }
    }
  }
}

// packed[row][word], zero from the end of a row to `ld`.
template <class Source>
static void pack_rows(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed, int64_t ld) {
  const auto* data = static_cast<const typename Source::Element*>(rows.data) + first * rows.stride;
  const int64_t num_words = (elems + Source::kPerWord - 1) / Source::kPerWord;
  for (int64_t row = 0; row < num_rows; ++row) {
    float* to = packed + row * ld;
    int64_t word = 0;
    for (; word + kLanes <= num_words; word += kLanes)
      store(to + word, Source::words(data + row * rows.stride, word, elems));
    if (word < num_words) {
      const Vec last = Source::words(data + row * rows.stride, word, elems);
      store_partial(to + word, last, static_cast<int>(num_words - word));
    }
    for (word = num_words; word < ld; ++word) to[word] = 0;
  }
}

// Like pack_rows where the sum runs over the rows: packed[row][element], or packed[row / 2][element] in pairs with a
// row of zeros after an odd last one.
template <class Source>
static void pack_summed_rows(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed, int64_t ld) {
  if constexpr (Source::kPerWord == 1) {
    pack_rows<Source>(rows, first, num_rows, elems, packed, ld);
  } else {
    const auto* data = static_cast<const uint16_t*>(rows.data) + first * rows.stride;
    for (int64_t row = 0; row < num_rows; row += 2) {
      const uint16_t* low = data + row * rows.stride;
      const uint16_t* high = row + 1 < num_rows ? low + rows.stride : nullptr;
      float* to = packed + row / 2 * ld;
      for (int64_t i = 0; i < ld; i += kLanes) {
        const UVec low_bits = __builtin_convertvector(load_halves(low, i, elems), UVec);
        const UVec high_bits = high ? __builtin_convertvector(load_halves(high, i, elems), UVec) : UVec{};
        const Vec words = (Vec)(low_bits | high_bits << 16);
        ld - i >= kLanes ? store(to + i, words) : store_partial(to + i, words, static_cast<int>(ld - i));
      }
    }
  }
}

// ---- Back from transposed accumulators to rows of the tensor's type ------------------------------------------------
WARPGRAD_INLINE void store_elems(DType dtype, void* row, int64_t first, Vec x, int count) {
  switch (dtype) {
    case DType::kFloat16: return store_half_partial(static_cast<uint16_t*>(row) + first, to_float16(x), count);
    case DType::kBFloat16: return store_half_partial(static_cast<uint16_t*>(row) + first, to_bfloat16(x), count);
    default: return store_partial(static_cast<float*>(row) + first, x, count);
  }
}

WARPGRAD_INLINE void* row_at(DType dtype, OutputRows rows, int64_t row) {
  return static_cast<char*>(rows.data) + row * rows.stride * static_cast<int64_t>(dtype_bytes(dtype));
}

// rows[first + lane][element] = map(values[element][lane]) for the lanes below num_rows.
template <class Map>
WARPGRAD_INLINE void store_transposed(DType dtype, OutputRows rows, int64_t first, int num_rows, int64_t elems,
                                      const float* values, int64_t ld, Map map) {
  for (int lane = 0; lane < num_rows; lane += kLanes) {
    for (int64_t element = 0; element < elems; element += kLanes) {
      const int count = static_cast<int>(elems - element < kLanes ? elems - element : kLanes);
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i)
        tile[i] = i < count ? map(load(values + (element + i) * ld + lane), lane) : Vec{};
      transpose(tile);
      const int last = num_rows - lane < kLanes ? num_rows - lane : kLanes;
      for (int i = 0; i < last; ++i) store_elems(dtype, row_at(dtype, rows, first + lane + i), element, tile[i], count);
    }
  }
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
