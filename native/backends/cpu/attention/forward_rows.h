#pragma once

#include "backends/cpu/attention/pack.h"
#include "backends/cpu/attention/products.h"
#include "backends/cpu/simd/vec_math.h"

// One block of query rows, a query in each lane: scores lie transposed, [keys][queries], so that maxima, sums and masks
// are lane by lane, and the probabilities are at once the operand of the second product. See README.md.
namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

constexpr float kNegativeInfinity = -__builtin_inff();

template <class Products>
struct Scratch {
  static constexpr int kKeys = Products::kInTiles ? 2 * kKeyTile : kKeyTile;
  alignas(64) float q[kMaxDim * kMicroColumns];  // [words of d][queries]
  // [keys][queries], in tiles also the next ones; float32 probabilities replace them
  alignas(64) float scores[Products::kInTiles ? 2 : 1][kKeys * kMicroColumns];
  alignas(64) float pairs[kKeys / 2 * kMicroColumns];  // probabilities in pairs of keys
  alignas(64) float out[kMaxDim * kMicroColumns];      // [dv][queries]
};

template <int kVecs>
struct RowState {
  Vec max[kVecs];                  // of the scores so far, in units of log2
  Vec sum[kVecs];                  // of exp2(score - max)
  Vec rescale[kVecs];              // what the newest tile's maximum makes of the earlier sums
  IVec first[kVecs], last[kVecs];  // the keys that the row sees, relative to the block's first one
};

template <class Products, int kVecs>
class ForwardRows {
 public:
  using Word = typename Products::Word;
  static constexpr int kColumns = kVecs * kLanes;

  ForwardRows(const ForwardBlock& block, Scratch<Products>& scratch) : block_(block), scratch_(scratch) {}

  void run() {
    pack_queries();
    Vec start[kVecs];
    for (int lane = 0; lane < kColumns; ++lane) start[lane / kLanes][lane % kLanes] = sink_of(lane);
    add_keys(start);
    store_lse();
    if (normalise()) average_large_values(start);
    store_transposed(block_.format.dtype, block_.out, block_.row, block_.num_rows, block_.shape.dv, scratch_.out,
                     kColumns, [](Vec x, int) __attribute__((always_inline)) { return x; });
  }

 private:
  // Products in tiles load and store their sums: more keys spare traffic, as long as a tile's operands stay near.
  int keys_of_tile() const {
    constexpr int kMost = Scratch<Products>::kKeys;
    if constexpr (!Products::kInTiles) return kMost;
    return block_.shape.d + block_.shape.dv <= 2 * kKeyTile ? kKeyTile : kMost;
  }
  // Of the tile; in tiles there are two, which change places.
  float* scores() { return scratch_.scores[Products::kInTiles ? current_ : 0]; }

  // The query's position in the sequence.
  int64_t position(int lane) const {
    return block_.row +
           (block_.rows_are_heads || lane == 0 ? 0 : (lane < block_.num_rows ? lane : block_.num_rows - 1));
  }

  void pack_queries() {
    with_source(block_.format, [&](auto source) __attribute__((always_inline)) {
      pack_transposed<decltype(source)>(block_.q, block_.row, block_.num_rows, block_.shape.d,
                                        word_sign(block_.format, block_.score.q_sign), scratch_.q, kColumns, kColumns);
    });
    if constexpr (Products::kInTiles) {
      const int64_t words = words_of(block_.format, block_.shape.d) * kColumns;
      for (int64_t i = words; i < tile_words(block_.shape.d) * kColumns; i += kLanes) store(scratch_.q + i, Vec{});
    }
  }

  // All keys, with the running maxima starting at `start`.
  void add_keys(const Vec (&start)[kVecs]) {
    const Band& band = block_.band;
    const int64_t first_row = block_.row, last_row = position(kColumns - 1);
    // Rounding adds masked keys: in pairs an even start, in tiles whole ones, which are packed with zeros past the end.
    const int64_t begin = first_key(band, first_row) / Products::kKeyStep * Products::kKeyStep;
    const int64_t end = Products::kInTiles ? tile_keys(end_key(band, last_row)) : end_key(band, last_row);
    start_rows(begin, start);
    if constexpr (Products::kInTiles) {
      for (int64_t key = begin; key < end && key < begin + keys_of_tile(); key += kTileKeys)
        multiply_tile(key, key - begin, scores());
    }
    // What every row sees: tiles inside need no mask.
    const int64_t full_begin = first_key(band, last_row), full_end = end_key(band, first_row);
    for (int64_t key = begin; key < end; key += keys_of_tile()) {
      const int num_keys = static_cast<int>(end - key < keys_of_tile() ? end - key : keys_of_tile());
      const bool masked = key < full_begin || key + num_keys > full_end;
      add_tile(key, static_cast<int32_t>(key - begin), num_keys, masked, end);
    }
  }

  void start_rows(int64_t begin, const Vec (&start)[kVecs]) {
    for (int v = 0; v < kVecs; ++v) {
      Vec sink{};
      for (int i = 0; i < kLanes; ++i) {
        const int lane = v * kLanes + i;
        sink[i] = sink_of(lane);
        state_.first[v][i] = static_cast<int32_t>(first_key(block_.band, position(lane)) - begin);
        state_.last[v][i] = static_cast<int32_t>(end_key(block_.band, position(lane)) - 1 - begin);
      }
      state_.max[v] = start[v];
      state_.sum[v] = sink == kNegativeInfinity ? Vec{} : exp2(sink - start[v]);
    }
    const int64_t dv = Products::kInTiles ? tile_rows(block_.shape.dv) : block_.shape.dv;
    for (int64_t i = 0; i < dv * kColumns; i += kLanes) store(scratch_.out + i, Vec{});
  }

  // In units of log2.
  float sink_of(int lane) const {
    if (block_.sink == nullptr) return kNegativeInfinity;
    const int row = lane < block_.num_rows ? lane : 0;
    return block_.sink[row * block_.sink_stride] * kLog2E;
  }

  // relative: of the tile's first key to the block's first one; end: of the block's keys.
  // NOTE: a function of its own, with all of a tile's work in it; otherwise GCC's choice costs a fifth of the speed.
  __attribute__((noinline)) void add_tile(int64_t key, int32_t relative, int num_keys, bool masked, int64_t end) {
    Vec tile_max[kVecs];
    for (Vec& x : tile_max) x = splat(kNegativeInfinity);
    for_row_groups(num_keys, [&]<int kRows>(int64_t i) __attribute__((always_inline)) {
      score_rows<kRows>(key + i, relative + static_cast<int32_t>(i), scores() + i * kColumns, masked, tile_max);
    });
    const float factor = block_.score.capped != 0 ? 1.0f : block_.score.factor;
    Vec minus_max[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Vec updated = max(state_.max[v], tile_max[v] * factor);
      // A row that has seen no key yet keeps -inf; its exponentials are taken relative to 0.
      minus_max[v] = updated == kNegativeInfinity ? Vec{} : -updated;
      state_.rescale[v] = exp2(state_.max[v] + minus_max[v]);
      state_.sum[v] *= state_.rescale[v];
      state_.max[v] = updated;
    }
    if constexpr (Products::kInTiles) {
      // The tile unit multiplies for the next tile while the vector units take exponentials for this one.
      for (int i = 0; i < num_keys; i += kTileKeys) {
        if (key + keys_of_tile() + i < end) multiply_tile(key + keys_of_tile() + i, i, scratch_.scores[current_ ^ 1]);
        exponentiate(i, i + kTileKeys, factor, minus_max);
      }
      add_value_tiles(key, num_keys, masked);
      current_ ^= 1;
    } else {
      exponentiate(0, num_keys, factor, minus_max);
      add_values(key, num_keys, masked);
    }
  }

  // Products of the kTileKeys keys from `key` on, in tiles.
  void multiply_tile(int64_t key, int64_t row, float* scores) {
    const Word* k = static_cast<const Word*>(block_.k.data) + key * block_.k.ld;
    Products::multiply_keys(k, kTileKeys, block_.shape.d, reinterpret_cast<const Word*>(scratch_.q), kVecs,
                            scores + row * kColumns, kColumns);
  }

  // Scores of kRows keys, whose products in tiles are there already.
  template <int kRows>
  __attribute__((always_inline)) void score_rows(int64_t key, int32_t relative, float* scores, bool masked,
                                                 Vec (&tile_max)[kVecs]) {
    const ScoreMap& map = block_.score;
    Vec acc[kRows][kVecs];
    if constexpr (Products::kInTiles) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) acc[r][v] = load(scores + r * kColumns + v * kLanes);
      }
    } else {
      zero(acc);
      Products::template multiply<AOrder::kRowMajor>(
          words_of(block_.format, block_.shape.d), static_cast<const Word*>(block_.k.data) + key * block_.k.ld,
          block_.k.ld, reinterpret_cast<const Word*>(scratch_.q), kColumns, acc);
    }
    if (map.capped != 0) {
      for (auto& row : acc) {
        for (Vec& x : row) x = tanh(x * map.factor) * map.capped;
      }
    }
    if (masked) {
      for (int r = 0; r < kRows; ++r) {
        const IVec position = splat_int(relative + r);
        for (int v = 0; v < kVecs; ++v) {
          const IVec visible = (position >= state_.first[v]) & (position <= state_.last[v]);
          acc[r][v] = visible ? acc[r][v] : splat(kNegativeInfinity);
        }
      }
    }
    const bool stored = Products::kInTiles && !masked && map.capped == 0;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        tile_max[v] = max(tile_max[v], acc[r][v]);
        if (!stored) store(scores + r * kColumns + v * kLanes, acc[r][v]);
      }
    }
  }

  // Scores become probabilities relative to the running maximum.
  __attribute__((always_inline)) void exponentiate(int first, int end, float factor, const Vec (&minus_max)[kVecs]) {
    const auto probability = [&](int key, int v) __attribute__((always_inline)) {
      // Rounded as the maximum is, so that the largest exponent is exactly 0 however large the scores are.
      const Vec scaled = rounded_product(load(scores() + key * kColumns + v * kLanes), splat(factor));
      const Vec p = exp2_bounded<Products::kPerWord == 2>(scaled + minus_max[v]);
      state_.sum[v] += p;
      return p;
    };
    for (int key = first; key < end; key += Products::kPerWord) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec p = probability(key, v);
#if defined(__AVX512BF16__)
        if constexpr (Products::kPerWord == 2) {
          const Vec next = key + 1 < end ? probability(key + 1, v) : Vec{};
          store(scratch_.pairs + key / 2 * kColumns + v * kLanes, interleave_bfloat16(p, next));
          continue;
        }
#endif
        store(scores() + key * kColumns + v * kLanes, p);
      }
    }
  }

  __attribute__((always_inline)) void add_values(int64_t key, int num_keys, bool masked) {
    const int64_t depth = (num_keys + Products::kPerWord - 1) / Products::kPerWord;
    const auto* p = reinterpret_cast<const Word*>(Products::kPerWord == 2 ? scratch_.pairs : scores());
    const Word* values = static_cast<const Word*>(block_.v.data) + key / Products::kPerWord * block_.v.ld;
    // A masked probability is 0, and 0 times a NaN or infinity that the row must not see would be NaN.
    const bool guarded = masked && !all_finite<Products>(values, block_.v.ld, depth, block_.shape.dv);
    for_row_groups(block_.shape.dv, [&]<int kRows>(int64_t row) __attribute__((always_inline)) {
      float* out = scratch_.out + row * kColumns;
      Vec acc[kRows][kVecs];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) acc[r][v] = load(out + r * kColumns + v * kLanes) * state_.rescale[v];
      }
      if (guarded) {
        Products::template multiply_guarded<AOrder::kColumnMajor, Weights::kRight>(depth, values + row, block_.v.ld, p,
                                                                                   kColumns, acc);
      } else {
        Products::template multiply<AOrder::kColumnMajor>(depth, values + row, block_.v.ld, p, kColumns, acc);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) store(out + r * kColumns + v * kLanes, acc[r][v]);
      }
    });
  }

  // The same in tiles. Sums are loaded and stored for every product anyway, so they are rescaled on their own, and only
  // where a maximum has grown.
  void add_value_tiles(int64_t key, int num_keys, bool masked) {
    const int64_t rows = block_.v.ld;
    IVec grown{};
    for (int v = 0; v < kVecs; ++v) grown |= state_.rescale[v] != 1.0f;
    if (any(grown)) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int v = 0; v < kVecs; ++v) {
          float* out = scratch_.out + row * kColumns + v * kLanes;
          store(out, load(out) * state_.rescale[v]);
        }
      }
    }
    const Word* values = static_cast<const Word*>(block_.v.data) + key / 2 * rows;
    Products::add_summed_keys(values, num_keys, block_.shape.dv, reinterpret_cast<const Word*>(scratch_.pairs), kVecs,
                              scratch_.out, kColumns, masked);
  }

  // A row without a key has no sum, and gets 0. A sum of 0 where there are keys comes from infinite scores: NaN, not an
  // answer.
  IVec no_key(int v) const { return (state_.sum[v] == 0.0f) & (state_.first[v] > state_.last[v]); }

  void store_lse() {
    for (int v = 0; v < kVecs; ++v) {
      const Vec lse = fma(state_.max[v], splat(kLn2), log(state_.sum[v]));
      const IVec lost = (state_.sum[v] == 0.0f) & ~no_key(v);
      const Vec written = lost ? splat(__builtin_nanf("")) : lse;
      for (int i = 0; i < kLanes && v * kLanes + i < block_.num_rows; ++i) {
        block_.lse[(block_.row + v * kLanes + i) * block_.lse_stride] = written[i];
      }
    }
  }

  // Sums of values become their means. Whether one of them is infinite or NaN though its row's weights are not.
  bool normalise() {
    IVec found{};
    for (int v = 0; v < kVecs; ++v) {
      const IVec none = no_key(v);
      const Vec inverse = 1.0f / state_.sum[v];
      const IVec weighted = ~FloatProducts::non_finite(inverse);
      for (int64_t row = 0; row < block_.shape.dv; ++row) {
        float* out = scratch_.out + row * kColumns + v * kLanes;
        // The product is good enough before rounding to 16 bits.
        const Vec mean = Products::kPerWord == 2 ? load(out) * inverse : load(out) / state_.sum[v];
        const Vec result = none ? Vec{} : mean;
        store(out, result);
        found |= FloatProducts::non_finite(result) & weighted;
      }
    }
    return any(found);
  }

  // Values near the largest float may have made a sum infinite whose mean is not. Relative to the logarithm of the sum
  // of exponentials the weights add up to 1, so their sum of values stays in range; the other results stay as they are.
  __attribute__((noinline)) void average_large_values(Vec (&start)[kVecs]) {
    alignas(64) float means[kMaxDim * kColumns];
    const int64_t size = block_.shape.dv * kColumns;
    for (int64_t i = 0; i < size; i += kLanes) store(means + i, load(scratch_.out + i));
    for (int v = 0; v < kVecs; ++v) {
      const Vec total = fma(log(state_.sum[v]), splat(kLog2E), state_.max[v]);
      start[v] = FloatProducts::non_finite(total) ? start[v] : total;
    }
    add_keys(start);
    normalise();
    for (int64_t i = 0; i < size; i += kLanes) {
      const Vec before = load(means + i);
      store(scratch_.out + i, FloatProducts::non_finite(before) ? load(scratch_.out + i) : before);
    }
  }

  const ForwardBlock& block_;
  Scratch<Products>& scratch_;
  int current_ = 0;  // which scores
  RowState<kVecs> state_;
};

template <class Products>
void run_block(const ForwardBlock& block) {
  Scratch<Products> scratch;
  if (block.num_rows > kLanes) {
    ForwardRows<Products, 2>(block, scratch).run();
  } else {
    ForwardRows<Products, 1>(block, scratch).run();
  }
}

}  // namespace
}  // namespace warpgrad::cpu::WARPGRAD_ISA
