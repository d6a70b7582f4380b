#pragma once

#include "backends/cpu/attention/pack.h"
#include "backends/cpu/attention/products.h"
#include "backends/cpu/simd/vec_math.h"

// One block of query rows, a query in each lane: scores lie transposed, [keys][queries], so that maxima, sums and masks
// are lane by lane, and the probabilities are at once the operand of the second product. See README.md.
namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

constexpr float kNegativeInfinity = -__builtin_inff();

// A float32 sum loses terms beside which it has grown large: after so many keys a row's sums go to totals and start
// anew.
constexpr int64_t kPartKeys = 2048;

template <class Products>
struct Scratch {
  static constexpr int kKeys = Products::kInTiles ? 2 * kKeyTile : kKeyTile;
  alignas(64) float q[kMaxDim * kMicroColumns];  // [words of d][queries]
  // [keys][queries], in tiles also the next ones; float32 probabilities replace them
  alignas(64) float scores[Products::kInTiles ? 2 : 1][kKeys * kMicroColumns];
  alignas(64) float pairs[kKeys / 2 * kMicroColumns];  // probabilities in pairs of keys
  alignas(64) float out[kMaxDim * kMicroColumns];      // [dv][queries]
  alignas(64) float out_totals[kMaxDim * kMicroColumns];
};

template <int kVecs>
struct RowState {
  Vec sink[kVecs];                 // -inf without one
  Vec sink_log2[kVecs];            // in units of log2
  Vec max[kVecs];                  // of the scores so far, in units of log2
  Vec sum[kVecs];                  // of exp2(score - max)
  Vec rescale[kVecs];              // what the newest tile's maximum makes of the earlier sums
  IVec first[kVecs], last[kVecs];  // the keys that the row sees, relative to the block's first one
  Vec total[kVecs];                // of the parts before this one
  Vec total_max[kVecs];            // that the totals are relative to
};

template <class Products, int kVecs>
class ForwardRows {
 public:
  using Word = typename Products::Word;
  static constexpr int kColumns = kVecs * kLanes;

  ForwardRows(const ForwardBlock& block, Scratch<Products>& scratch) : block_(block), scratch_(scratch) {}

  void run() {
    pack_queries();
    load_sinks();
    add_keys(state_.sink_log2);
    store_lse();
    IVec found{};
    const Means means(state_);
    store_results([&](Vec sum, int lane) __attribute__((always_inline)) {
      const Vec mean = means(sum, lane / kLanes);
      found |= FloatProducts::non_finite(mean);
      return mean;
    });
    if (any(found)) average_large_values(means);
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

  int64_t out_rows() const { return Products::kInTiles ? tile_rows(block_.shape.dv) : block_.shape.dv; }
  int64_t last_row() const { return block_.row + (block_.rows_are_heads ? 0 : block_.num_rows - 1); }

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
    const int64_t first_row = block_.row, last_row = this->last_row();
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
      if (key > begin && (key - begin) % kPartKeys == 0) end_part(key - begin == kPartKeys);
      add_tile(key, static_cast<int32_t>(key - begin), num_keys, masked, end);
    }
    if (end - begin > kPartKeys) join_totals();
  }

  // Adds the sums to the totals, which go along with the maximum, and starts them anew.
  __attribute__((noinline)) void end_part(bool first) {
    Vec rescale[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Vec minus_max = state_.max[v] == kNegativeInfinity ? Vec{} : -state_.max[v];
      rescale[v] = first ? Vec{} : exp2(state_.total_max[v] + minus_max);
      state_.total[v] = first ? state_.sum[v] : fma(state_.total[v], rescale[v], state_.sum[v]);
      state_.total_max[v] = state_.max[v];
      state_.sum[v] = Vec{};
    }
    for (int64_t row = 0; row < out_rows(); ++row) {
      for (int v = 0; v < kVecs; ++v) {
        float *out = scratch_.out + row * kColumns + v * kLanes, *total = scratch_.out_totals + (out - scratch_.out);
        store(total, first ? load(out) : fma(load(total), rescale[v], load(out)));
        store(out, Vec{});
      }
    }
  }

  void join_totals() {
    end_part(false);
    for (int v = 0; v < kVecs; ++v) state_.sum[v] = state_.total[v];
    for (int64_t i = 0; i < out_rows() * kColumns; i += kLanes) store(scratch_.out + i, load(scratch_.out_totals + i));
  }

  void load_sinks() {
    for (int v = 0; v < kVecs; ++v) {
      const bool one = block_.sink != nullptr && block_.sink_stride == 0;
      state_.sink[v] = splat(one ? *block_.sink : kNegativeInfinity);
    }
    for (int lane = 0; block_.sink_stride != 0 && lane < block_.num_rows; ++lane) {
      state_.sink[lane / kLanes][lane % kLanes] = block_.sink[lane * block_.sink_stride];
    }
    // A large one may be more than a float in units of log2: there any score is as far from it as from the largest
    // float. NaN and infinities stay what they are.
    const Vec largest = splat(__FLT_MAX__);
    for (int v = 0; v < kVecs; ++v) {
      const Vec sink = state_.sink[v], sink_log2 = sink * kLog2E;
      state_.sink_log2[v] = abs(sink) <= largest ? min(largest, max(-largest, sink_log2)) : sink;
    }
  }

  void start_rows(int64_t begin, const Vec (&start)[kVecs]) {
    const int64_t last_row = this->last_row();
    for (int v = 0; v < kVecs; ++v) {
      const Vec sink = state_.sink_log2[v];
      state_.max[v] = start[v];
      state_.sum[v] = sink == kNegativeInfinity ? Vec{} : exp2(sink - start[v]);
      for (int i = 0; i < kLanes; ++i) {
        const int64_t row = block_.row + v * kLanes + i < last_row ? block_.row + v * kLanes + i : last_row;
        state_.first[v][i] = static_cast<int32_t>(first_key(block_.band, row) - begin);
        state_.last[v][i] = static_cast<int32_t>(end_key(block_.band, row) - 1 - begin);
      }
    }
    for (int64_t i = 0; i < out_rows() * kColumns; i += kLanes) store(scratch_.out + i, Vec{});
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
  static IVec no_key(const RowState<kVecs>& state, int v) { return state.first[v] > state.last[v]; }

  void store_lse() {
    for (int v = 0; v < kVecs; ++v) {
      // The sink itself where it is the maximum: in units of log2 it may be cut to the largest float.
      const Vec log_sum = log(state_.sum[v]);
      const IVec of_sink = state_.max[v] == state_.sink_log2[v];
      const Vec lse = of_sink ? state_.sink[v] + log_sum : fma(state_.max[v], splat(kLn2), log_sum);
      const IVec lost = (state_.sum[v] == 0.0f) & ~no_key(state_, v);
      const Vec written = lost ? splat(__builtin_nanf("")) : lse;
      const int rest = block_.num_rows - v * kLanes, count = rest < kLanes ? rest : kLanes;
      float* to = block_.lse + (block_.row + v * kLanes) * block_.lse_stride;
      if (block_.lse_stride == 1 && count > 0) store_partial(to, written, count);
      for (int i = 0; block_.lse_stride != 1 && i < count; ++i) to[i * block_.lse_stride] = written[i];
    }
  }

  // From a sum of values and the weights' sum to the mean.
  struct Means {
    Vec total[kVecs], inverse[kVecs];
    IVec none[kVecs];

    explicit Means(const RowState<kVecs>& state) {
      for (int v = 0; v < kVecs; ++v) {
        total[v] = state.sum[v];
        none[v] = no_key(state, v);
        inverse[v] = 1.0f / total[v];
      }
    }
    __attribute__((always_inline)) Vec operator()(Vec sum, int v) const {
      const Vec mean = Products::kPerWord == 2 ? sum * inverse[v] : sum / total[v];  // good enough before rounding
      return none[v] ? Vec{} : mean;
    }
  };

  template <class Map>
  __attribute__((always_inline)) void store_results(Map map) {
    store_transposed(block_.format.dtype, block_.out, block_.row, block_.num_rows, block_.shape.dv, scratch_.out,
                     kColumns, map);
  }

  // Values near the largest float may have made a sum infinite whose mean is not. Relative to the logarithm of the sum
  // of exponentials the weights add up to 1, so their sum of values stays in range; the other results stay as they are.
  __attribute__((noinline)) void average_large_values(const Means& means) {
    alignas(64) float sums[kMaxDim * kColumns];
    const int64_t size = block_.shape.dv * kColumns;
    for (int64_t i = 0; i < size; i += kLanes) store(sums + i, load(scratch_.out + i));
    Vec start[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Vec total = fma(log(state_.sum[v]), splat(kLog2E), state_.max[v]);
      start[v] = FloatProducts::non_finite(total) ? state_.sink_log2[v] : total;
    }
    add_keys(start);
    const Means new_means(state_);
    for (int64_t i = 0; i < size; i += kLanes) {
      const int v = static_cast<int>(i % kColumns / kLanes);
      const Vec before = means(load(sums + i), v);
      const Vec after = new_means(load(scratch_.out + i), v);
      store(scratch_.out + i, FloatProducts::non_finite(before) ? after : before);
    }
    store_results([](Vec mean, int) __attribute__((always_inline)) { return mean; });
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
