#pragma once

// Products of bfloat16 pairs in tiles (AMX), and the packed forms of their operands. A tile is 16 rows of 16 words;
// sides that are no multiples of it are filled with zeros. Keys come in groups of kTileKeys, a tile's 16 pairs.

#include "backends/cpu/attention/pack.h"
#include "backends/cpu/attention/products.h"
#include "backends/cpu/simd/tile_kernel.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

WARPGRAD_INLINE void store_finite(const PairWord* from, PairWord* to) {
  store(reinterpret_cast<float*>(to), PairProducts::finite_part(load(reinterpret_cast<const float*>(from))));
}

// One number of each pair.
WARPGRAD_INLINE Vec numbers_of(Vec words, int half) {
  const IVec bits = bits_of(words);
  return float_of_bits(half ? bits & static_cast<int32_t>(0xffff0000) : bits << 16);
}

// Like multiply_tiles with accumulate, but where b is 0 an infinite or NaN a adds nothing. Sums that meet none of them
// get the same bits: first the product without them, then they alone. Rare, so it need not be quick.
static __attribute__((noinline)) void multiply_tiles_guarded(int64_t m, int64_t n, int64_t depth, TileRows a,
                                                             const PairWord* b, int64_t ldb, float* c, int64_t ldc) {
  alignas(64) PairWord finite[kTileSize];
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t k = 0; k < depth; ++k) {
      const PairWord* tile = a.data + i * a.step_m + k * a.step_k;
      const PairWord* b_rows = b + k * kTileRows * ldb;
      float* c_rows = c + i * kTileRows * ldc;
      for (int row = 0; row < kTileRows; ++row) store_finite(tile + row * a.ld, finite + row * kTileWords);
      multiply_tiles(1, n, 1, {finite, 0, 0, kTileWords}, b_rows, ldb, true, c_rows, ldc);
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int at = 0; at < kTileSize; ++at) {
        const int row = at / kTileWords, pair = at % kTileWords;
        const PairWord word = a.data[i * a.step_m + k * a.step_k + row * a.ld + pair];
        for (int half = 0; half < 2; ++half) {
          const auto bits = static_cast<int32_t>(half ? word & 0xffff0000 : word << 16);
          if ((bits & 0x7f800000) != 0x7f800000) continue;
          const Vec value = float_of_bits(splat_int(bits));
          for (int64_t lane = 0; lane < n * kLanes; lane += kLanes) {
            const Vec x =
                numbers_of(load(reinterpret_cast<const float*>(b + (k * kTileRows + pair) * ldb + lane)), half);
            float* to = c + (i * kTileRows + row) * ldc + lane;
            store(to, x == 0.0f ? load(to) : fma(value, x, load(to)));
          }
        }
      }
    }
  }
}

// ---- Packed operands -----------------------------------------------------------------------------------------------

// Where the sum runs along a row: [rows / 16][words / 16] tiles, rows counted up to a multiple of kTileKeys.
static void pack_row_tiles(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed) {
  const auto* data = static_cast<const uint16_t*>(rows.data) + first * rows.stride;
  const int64_t depth = tile_words(elems) / kTileWords;
  for (int64_t row = 0; row < tile_keys(num_rows); ++row) {
    float* to = packed + row / kTileRows * depth * kTileSize + row % kTileRows * kTileWords;
    for (int64_t k = 0; k < depth; ++k) {
      const bool inside = row < num_rows;
      const Vec words = inside ? FromBFloat16Pairs::words(data + row * rows.stride, k * kTileWords, elems) : Vec{};
      store(to + k * kTileSize, words);
    }
  }
}

// Where it runs over the rows: [rows / 32][elems / 16] tiles of [element][pair of rows].
static void pack_summed_tiles(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed) {
  const auto* data = static_cast<const uint16_t*>(rows.data) + first * rows.stride;
  const auto half_words = [&](int64_t row, int64_t element) __attribute__((always_inline)) {
    return row < num_rows ? __builtin_convertvector(load_halves(data + row * rows.stride, element, elems), UVec)
                          : UVec{};
  };
  for (int64_t row = 0; row < num_rows; row += kTileKeys) {
    for (int64_t element = 0; element < elems; element += kTileRows, packed += kTileSize) {
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        tile[i] = (Vec)(half_words(row + 2 * i, element) | half_words(row + 2 * i + 1, element) << 16);
      }
      transpose(tile);
      for (int i = 0; i < kLanes; ++i) store(packed + i * kTileWords, tile[i]);
    }
  }
}

// ---- The products of attention: keys and rows counted up to whole tiles
// ----------------------------------------------
struct TileProducts : PairProducts {
  static constexpr bool kInTiles = true;
  static constexpr int kKeyStep = kTileKeys;

  // c[keys][queries] = keys[keys][elems] · b[words][queries], keys from pack_row_tiles.
  static void multiply_keys(const PairWord* keys, int64_t num_keys, int64_t elems, const PairWord* b, int num_vecs,
                            float* c, int64_t ld) {
    const int64_t depth = tile_words(elems) / kTileWords;
    const TileRows a{keys, depth * kTileSize, kTileSize, kTileWords};
    multiply_tiles(num_keys / kTileRows, num_vecs, depth, a, b, ld, false, c, ld);
  }

  // c[elems][queries] += keys[keys][elems]ᵀ · b[pairs of keys][queries], keys from pack_summed_tiles.
  // A masked b is 0, and 0 times a NaN or infinity that the query must not see would be NaN.
  static void add_summed_keys(const PairWord* keys, int64_t num_keys, int64_t elems, const PairWord* b, int num_vecs,
                              float* c, int64_t ld, bool masked) {
    const int64_t rows = tile_rows(elems), depth = num_keys / kTileKeys;
    const TileRows a{keys, kTileSize, rows * kTileWords, kTileWords};
    if (masked && !all_finite<PairProducts>(keys, kTileWords, depth * rows, kTileWords)) {
      multiply_tiles_guarded(rows / kTileRows, num_vecs, depth, a, b, ld, c, ld);
    } else {
      multiply_tiles(rows / kTileRows, num_vecs, depth, a, b, ld, true, c, ld);
    }
  }

  // c[keys][ld] += tile[keys][pairs of queries] · b[pairs of queries][ld], rows of the tile kRowWords apart. Guarded:
  // where the tile is 0 an infinite or NaN b adds nothing.
  template <int kRowWords>
  static void add_queries(const PairWord* tile, int64_t num_keys, int64_t num_queries, const PairWord* b, float* c,
                          int64_t ld, bool guarded) {
    const int64_t pairs = tile_keys(num_queries) / 2;
    alignas(64) PairWord finite[kQueryBlock / 2 * kMaxDim];
    for (int64_t i = 0; guarded && i < pairs * ld; i += kTileWords) store_finite(b + i, finite + i);
    const TileRows a{tile, kTileRows * kRowWords, kTileWords, kRowWords};
    multiply_tiles(num_keys / kTileRows, ld / kTileWords, pairs / kTileWords, a, guarded ? finite : b, ld, true, c, ld);
    if (guarded) add_non_finite_queries(tile, num_keys, kRowWords, pairs, b, c, ld);
  }

  // What the finite part of b left out. Rare, so it need not be quick.
  static __attribute__((noinline)) void add_non_finite_queries(const PairWord* tile, int64_t num_keys,
                                                               int64_t row_words, int64_t pairs, const PairWord* b,
                                                               float* c, int64_t ld) {
    for (int64_t at = 0; at < pairs * ld; at += kLanes) {
      const Vec words = load(reinterpret_cast<const float*>(b + at));
      if (!any(non_finite(words))) continue;
      for (int half = 0; half < 2; ++half) {
        const Vec factor = numbers_of(words, half);
        const IVec left_out = FloatProducts::non_finite(factor);
        for (int64_t key = 0; key < num_keys; ++key) {
          const Vec weight =
              numbers_of(float_of_bits(splat_int(static_cast<int32_t>(tile[key * row_words + at / ld]))), half);
          float* to = c + key * ld + at % ld;
          store(to, left_out & (weight != 0.0f) ? fma(weight, factor, load(to)) : load(to));
        }
      }
    }
  }

  static void pack_row_keys(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed) {
    pack_row_tiles(rows, first, num_rows, elems, packed);
  }
  static void pack_summed_keys(Rows rows, int64_t first, int64_t num_rows, int64_t elems, float* packed) {
    pack_summed_tiles(rows, first, num_rows, elems, packed);
  }
};

}  // namespace warpgrad::cpu::WARPGRAD_ISA
