#pragma once

// One tile of the backward: kKeyTile keys against a block of kQueryBlock query rows. All tiles lie [keys][queries], a
// query in each lane; README.md has the five products.

#include "backends/cpu/attention/products.h"
#include "backends/cpu/simd/vec_math.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

// A block of query rows as the products want it. Lanes past num_rows hold zeros, and +inf in lse_log2.
template <class Products>
struct QueryBlock {
  using Word = typename Products::Word;
  int num_rows;
  int num_vecs;               // ceil(num_rows / kLanes)
  const Word *q_t, *d_out_t;  // [words of d or dv][kQueryBlock]
  const Word *q, *d_out;      // [rows, or pairs of rows][ld_d or ld_dv]
  bool finite;                // q and d_out, where there are masked tiles
  alignas(64) float lse_log2[kQueryBlock], delta[kQueryBlock];
  alignas(64) int32_t first_key[kQueryBlock], last_key[kQueryBlock];  // relative to the key block
  float* dq_t;                                                        // [d][kQueryBlock]
};

// A block of keys and its gradients.
template <class Products>
struct KeyBlock {
  using Word = typename Products::Word;
  const Word *k, *v;     // [keys][words of d or dv]
  const Word* k_summed;  // [keys, or pairs of keys][d]
  float *dk, *dv;        // [keys][ld_d or ld_dv]
};

struct TileBuffers {
  alignas(64) float p[kKeyTile * kQueryBlock];
  alignas(64) float ds[kKeyTile * kQueryBlock];
  alignas(64) float slope[kKeyTile * kQueryBlock];  // of the softcap
  // In pairs of queries, [keys][kQueryBlock / 2], and in pairs of keys, [kKeyTile / 2][kQueryBlock].
  alignas(64) float p_pairs[kKeyTile * kQueryBlock / 2];
  alignas(64) float ds_pairs[kKeyTile * kQueryBlock / 2];
  alignas(64) float ds_key_pairs[kKeyTile * kQueryBlock / 2];
};

template <class Products>
class BackwardTile {
 public:
  using Word = typename Products::Word;
  static constexpr bool kPairs = Products::kPerWord == 2;
  static constexpr int64_t kRowWords = kQueryBlock / Products::kPerWord;  // of a tile whose words run along queries

  BackwardTile(const BackwardTask& task, const KeyBlock<Products>& keys, int64_t ld_d, int64_t ld_dv,
               TileBuffers& buffers)
      : task_(task), keys_(keys), ld_d_(ld_d), ld_dv_(ld_dv), buffers_(buffers) {}

  // Keys [key, key + num_keys) of the block, where key is even in pairs.
  void run(const QueryBlock<Products>& queries, int key, int num_keys, bool masked) {
    // A masked weight is 0, and 0 times a NaN or infinity of a row that doesn't see the key would be NaN.
    const bool guarded = masked && !queries.finite;
    const Word* p = words(kPairs ? buffers_.p_pairs : buffers_.p);
    const Word* ds = words(kPairs ? buffers_.ds_pairs : buffers_.ds);
    // In tiles a few keys at a time, so that the tile unit multiplies for the next ones meanwhile.
    const int step = Products::kInTiles ? kTileKeys : num_keys;
    if constexpr (Products::kInTiles)
      multiply_keys(keys_.k, task_.shape.d, key, 0, num_keys, queries.q_t, queries.num_vecs, buffers_.p);
    for (int i = 0; i < num_keys; i += step) {
      if constexpr (Products::kInTiles)
        multiply_keys(keys_.v, task_.shape.dv, key, i, step, queries.d_out_t, queries.num_vecs, buffers_.ds);
      for_panels(queries.num_vecs, [&]<int kVecs>(int v) __attribute__((always_inline)) {
        for_row_groups(step, [&]<int kRows>(int64_t row) __attribute__((always_inline)) {
          probabilities<kRows, kVecs>(queries, key, i + static_cast<int>(row), v, masked);
        });
      });
    }
    for (int i = 0; i < num_keys; i += step) {
      add_key_gradients(queries, step, p + i * kRowWords, queries.d_out, ld_dv_, keys_.dv + (key + i) * ld_dv_,
                        guarded);
      for_panels(queries.num_vecs, [&]<int kVecs>(int v) __attribute__((always_inline)) {
        for_row_groups(step, [&]<int kRows>(int64_t row) __attribute__((always_inline)) {
          score_gradients<kRows, kVecs>(queries, key, i + static_cast<int>(row), v, masked);
        });
      });
    }
    add_key_gradients(queries, num_keys, ds, queries.q, ld_d_, keys_.dk + key * ld_d_, guarded);
    add_query_gradients(queries, key, num_keys, masked);
  }

 private:
  static const Word* words(const float* data) { return reinterpret_cast<const Word*>(data); }
  static int64_t words_per(int64_t elems) { return (elems + Products::kPerWord - 1) / Products::kPerWord; }

  // product[i...] = keys[key + i...] · queries for num_keys keys, in tiles
  static void multiply_keys(const Word* keys, int64_t elems, int key, int i, int num_keys, const Word* queries,
                            int num_vecs, float* product) {
    Products::multiply_keys(keys + (key + i) * tile_words(elems), num_keys, elems, queries, num_vecs,
                            product + i * kQueryBlock, kQueryBlock);
  }

  // acc = keys · queries for kRows keys from i on: products in tiles are in `product` already.
  template <int kRows, int kVecs>
  WARPGRAD_INLINE void multiply_rows(const Word* keys, int64_t first, int64_t elems, const Word* queries,
                                     const float* product, Vec (&acc)[kRows][kVecs]) {
    if constexpr (Products::kInTiles) {
      load_tile(acc, product, kQueryBlock);
    } else {
      const int64_t depth = words_per(elems);
      zero(acc);
      Products::template multiply<AOrder::kRowMajor>(depth, keys + first * depth, depth, queries, kQueryBlock, acc);
    }
  }

  // P = exp2(S - lse) for kRows keys from i on.
  template <int kRows, int kVecs>
  __attribute__((always_inline)) void probabilities(const QueryBlock<Products>& queries, int key, int i, int v,
                                                    bool masked) {
    Vec acc[kRows][kVecs];
    multiply_rows(keys_.k, key + i, task_.shape.d, queries.q_t + v * kLanes, buffers_.p + i * kQueryBlock + v * kLanes,
                  acc);
    const ScoreMap& map = task_.score;
    float* slope = buffers_.slope + i * kQueryBlock + v * kLanes;
    for (int r = 0; map.capped != 0 && r < kRows; ++r) {
      for (int u = 0; u < kVecs; ++u) {
        const Vec t = tanh(acc[r][u] * map.factor);
        store(slope + r * kQueryBlock + u * kLanes, 1.0f - t * t);
        acc[r][u] = t;
      }
    }
    const Vec factor = splat(map.capped != 0 ? map.capped : map.factor);
    for (int u = 0; u < kVecs; ++u) {
      const int lane = (v + u) * kLanes;
      const Vec minus_lse = -load(queries.lse_log2 + lane);
      for (int r = 0; r < kRows; ++r) {
        // At most 0, which the rounding of large scores and of their lse would pass. A NaN stays.
        const Vec x = min(splat(0.0f), fma(acc[r][u], factor, minus_lse));
        acc[r][u] = exp2_bounded<kPairs>(x);
      }
      if (!masked) continue;
      const IVec first = bits_of(load(reinterpret_cast<const float*>(queries.first_key + lane)));
      const IVec last = bits_of(load(reinterpret_cast<const float*>(queries.last_key + lane)));
      for (int r = 0; r < kRows; ++r) {
        const IVec position = splat_int(key + i + r);
        acc[r][u] = (position >= first) & (position <= last) ? acc[r][u] : Vec{};
      }
    }
    store_tile(acc, buffers_.p, i, v);
    if constexpr (kPairs) store_query_pairs(acc, buffers_.p_pairs, i, v);
  }

  // dS = P ∘ (dP - D), with the slope of the softcap.
  template <int kRows, int kVecs>
  __attribute__((always_inline)) void score_gradients(const QueryBlock<Products>& queries, int key, int i, int v,
                                                      bool masked) {
    Vec acc[kRows][kVecs];
    multiply_rows(keys_.v, key + i, task_.shape.dv, queries.d_out_t + v * kLanes,
                  buffers_.ds + i * kQueryBlock + v * kLanes, acc);
    for (int u = 0; u < kVecs; ++u) {
      const Vec delta = load(queries.delta + (v + u) * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = (i + r) * kQueryBlock + (v + u) * kLanes;
        const Vec p = load(buffers_.p + at);
        Vec ds = p * (acc[r][u] - delta);
        if (task_.score.capped != 0) ds *= load(buffers_.slope + at);
        // V may be NaN where no row sees it.
        acc[r][u] = masked ? (p == 0.0f ? Vec{} : ds) : ds;
      }
    }
    if constexpr (kPairs) {
      store_query_pairs(acc, buffers_.ds_pairs, i, v);
      store_key_pairs(acc, i, v);
    } else {
      store_tile(acc, buffers_.ds, i, v);
    }
  }

  template <int kRows, int kVecs>
  WARPGRAD_INLINE void store_tile(const Vec (&acc)[kRows][kVecs], float* tile, int i, int v) {
    for (int r = 0; r < kRows; ++r) {
      for (int u = 0; u < kVecs; ++u) store(tile + (i + r) * kQueryBlock + (v + u) * kLanes, acc[r][u]);
    }
  }

#if defined(__AVX512BF16__)
  template <int kRows, int kVecs>
  WARPGRAD_INLINE void store_query_pairs(const Vec (&acc)[kRows][kVecs], float* tile, int i, int v) {
    for (int r = 0; r < kRows; ++r) {
      for (int u = 0; u < kVecs; ++u) {
        auto* to = reinterpret_cast<char*>(tile + (i + r) * (kQueryBlock / 2)) + (v + u) * kLanes * 2;
        const __m256bh rounded = _mm512_cvtneps_pbh((__m512)acc[r][u]);
        std::memcpy(to, &rounded, sizeof(rounded));
      }
    }
  }

  // Groups start at even keys, and only a group of one key ends at an odd one, which gets a zero as its partner.
  template <int kRows, int kVecs>
  __attribute__((always_inline)) void store_key_pairs(const Vec (&acc)[kRows][kVecs], int i, int v) {
    for (int r = 0; r < kRows; r += 2) {
      for (int u = 0; u < kVecs; ++u) {
        const Vec next = r + 1 < kRows ? acc[r + 1 < kRows ? r + 1 : r][u] : Vec{};
        store(buffers_.ds_key_pairs + (i + r) / 2 * kQueryBlock + (v + u) * kLanes,
              interleave_bfloat16(acc[r][u], next));
      }
    }
  }
#endif

  // gradient[keys][columns] += tile[keys][queries] · rows[queries][columns]
  void add_key_gradients(const QueryBlock<Products>& queries, int num_keys, const Word* tile, const Word* rows,
                         int64_t ld, float* gradient, bool guarded) {
    if constexpr (Products::kInTiles) {
      Products::template add_queries<kRowWords>(tile, num_keys, queries.num_rows, rows, gradient, ld, guarded);
      return;
    }
    const int64_t depth = words_per(queries.num_rows);
    for_panels(static_cast<int>(ld / kLanes), [&]<int kVecs>(int v) __attribute__((always_inline)) {
      for_row_groups(num_keys, [&]<int kRows>(int64_t i) __attribute__((always_inline)) {
        float* to = gradient + i * ld + v * kLanes;
        Vec acc[kRows][kVecs];
        load_tile(acc, to, ld);
        const Word *a = tile + i * kRowWords, *b = rows + v * kLanes;
        if (guarded) {
          Products::template multiply_guarded<AOrder::kRowMajor, Weights::kLeft>(depth, a, kRowWords, b, ld, acc);
        } else {
          Products::template multiply<AOrder::kRowMajor>(depth, a, kRowWords, b, ld, acc);
        }
        save_tile(acc, to, ld);
      });
    });
  }

  // dq_t[d][queries] += k[keys][d]ᵀ · ds[keys][queries]
  void add_query_gradients(const QueryBlock<Products>& queries, int key, int num_keys, bool masked) {
    if constexpr (Products::kInTiles) {
      const Word* k = keys_.k_summed + key / 2 * tile_rows(task_.shape.d);
      Products::add_summed_keys(k, num_keys, task_.shape.d, words(buffers_.ds_key_pairs), queries.num_vecs,
                                queries.dq_t, kQueryBlock, masked);
      return;
    }
    const int64_t d = task_.shape.d;
    const Word* k = keys_.k_summed + key / Products::kPerWord * d;
    const Word* ds = words(kPairs ? buffers_.ds_key_pairs : buffers_.ds);
    const int64_t depth = words_per(num_keys);
    // A masked gradient is 0, and 0 times a NaN or infinity that the row must not see would be NaN.
    const bool guarded = masked && !all_finite<Products>(k, d, depth, d);
    for_panels(queries.num_vecs, [&]<int kVecs>(int v) __attribute__((always_inline)) {
      for_row_groups(d, [&]<int kRows>(int64_t i) __attribute__((always_inline)) {
        float* to = queries.dq_t + i * kQueryBlock + v * kLanes;
        Vec acc[kRows][kVecs];
        load_tile(acc, to, kQueryBlock);
        if (guarded) {
          Products::template multiply_guarded<AOrder::kColumnMajor, Weights::kRight>(depth, k + i, d, ds + v * kLanes,
                                                                                     kQueryBlock, acc);
        } else {
          Products::template multiply<AOrder::kColumnMajor>(depth, k + i, d, ds + v * kLanes, kQueryBlock, acc);
        }
        save_tile(acc, to, kQueryBlock);
      });
    });
  }

  template <int kRows, int kVecs>
  WARPGRAD_INLINE void load_tile(Vec (&acc)[kRows][kVecs], const float* from, int64_t ld) {
    for (int r = 0; r < kRows; ++r) {
      for (int u = 0; u < kVecs; ++u) acc[r][u] = load(from + r * ld + u * kLanes);
    }
  }
  template <int kRows, int kVecs>
  WARPGRAD_INLINE void save_tile(const Vec (&acc)[kRows][kVecs], float* to, int64_t ld) {
    for (int r = 0; r < kRows; ++r) {
      for (int u = 0; u < kVecs; ++u) store(to + r * ld + u * kLanes, acc[r][u]);
    }
  }

  const BackwardTask& task_;
  const KeyBlock<Products>& keys_;
  int64_t ld_d_, ld_dv_;
  TileBuffers& buffers_;
};

}  // namespace warpgrad::cpu::WARPGRAD_ISA
