#pragma once

#include "backends/cpu/attention/backward_tile.h"
#include "backends/cpu/attention/pack.h"

// One block of keys against every block of query rows that sees it, for every query head that reads it: dK and dV stay
// here, dQ is added to sums that the tasks of a head share, in the order of their key blocks. See README.md.
namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

constexpr int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// A float32 sum loses terms beside which it has grown large: after so many query rows dK and dV go to totals and start
// anew.
constexpr int64_t kPartRows = 4096;

// Parts of the task's workspace.
template <class Products>
struct Workspace {
  using Word = typename Products::Word;
  int64_t ld_d, ld_dv, d_words, dv_words;
  float *k, *v, *k_summed, *dk, *dv, *dk_totals, *dv_totals;
  float *q_t, *d_out_t, *q, *d_out, *dq_t;
  int64_t elems;

  Workspace(HeadShape shape, int64_t num_keys, float* base) {
    constexpr int64_t kPer = Products::kPerWord;
    constexpr bool kInTiles = Products::kInTiles;
    ld_d = round_up(shape.d, kLanes);
    ld_dv = round_up(shape.dv, kLanes);
    d_words = kInTiles ? tile_words(shape.d) : (shape.d + kPer - 1) / kPer;
    dv_words = kInTiles ? tile_words(shape.dv) : (shape.dv + kPer - 1) / kPer;
    const int64_t d_rows = kInTiles ? tile_rows(shape.d) : shape.d;
    if (kInTiles) num_keys = tile_keys(num_keys);
    elems = 0;
    const auto part = [&](int64_t size) {
      float* start = base + elems;
      elems += round_up(size, 16);
      return start;
    };
    k = part(num_keys * d_words);
    v = part(num_keys * dv_words);
    k_summed = kPer == 1 ? k : part((num_keys + 1) / 2 * d_rows);
    dk = part(num_keys * ld_d);
    dv = part(num_keys * ld_dv);
    dk_totals = part(num_keys * ld_d);
    dv_totals = part(num_keys * ld_dv);
    q_t = part(d_words * kQueryBlock);
    d_out_t = part(dv_words * kQueryBlock);
    q = part(kQueryBlock / kPer * ld_d);
    d_out = part(kQueryBlock / kPer * ld_dv);
    dq_t = part(d_rows * kQueryBlock);
  }
};

template <class Products>
class BackwardKeys {
 public:
  using Word = typename Products::Word;

  explicit BackwardKeys(const BackwardTask& task)
      : task_(task),
        band_(task.band),
        begin_(task.key_block * task.key_block_rows),
        num_keys_(clamp(band_.k_len - begin_, 0, task.key_block_rows)),
        space_(task.shape, num_keys_, task.workspace),
        keys_{words(space_.k), words(space_.v), words(space_.k_summed), space_.dk, space_.dv},
        tile_(task_, keys_, space_.ld_d, space_.ld_dv, buffers_) {}

  void run() {
    load_keys();
    const int64_t row_begin = first_row(band_, begin_) / kQueryBlock * kQueryBlock;
    const int64_t row_end = end_row(band_, begin_ + num_keys_ - 1);
    int64_t rows = 0;
    for (int64_t head = 0; head < task_.num_heads; ++head) {
      for (int64_t row = row_begin; row < row_end; row += kQueryBlock, rows += kQueryBlock) {
        if (rows > 0 && rows % kPartRows == 0) end_part(rows == kPartRows);
        if (!add_query_block(task_.heads[head], row)) return;
      }
    }
    if (rows > kPartRows) join_totals();
    store_rows(space_.dk, space_.ld_d, task_.shape.d, task_.scale, task_.dk);
    store_rows(space_.dv, space_.ld_dv, task_.shape.dv, 1.0f, task_.dv);
  }

 private:
  static const Word* words(const float* data) { return reinterpret_cast<const Word*>(data); }

  void load_keys() {
    const HeadShape& shape = task_.shape;
    int64_t num_keys = num_keys_;
    if constexpr (Products::kInTiles) {
      num_keys = tile_keys(num_keys);
      Products::pack_row_keys(task_.k, begin_, num_keys_, shape.d, space_.k);
      Products::pack_row_keys(task_.v, begin_, num_keys_, shape.dv, space_.v);
      Products::pack_summed_keys(task_.k, begin_, num_keys_, shape.d, space_.k_summed);
    } else {
      pack_keys(shape);
    }
    clear(space_.dk, 0, num_keys * space_.ld_d);
    clear(space_.dv, 0, num_keys * space_.ld_dv);
  }

  void pack_keys(const HeadShape& shape) {
    with_source(task_.format, [&](auto source) __attribute__((always_inline)) {
      using Source = decltype(source);
      pack_rows<Source>(task_.k, begin_, num_keys_, shape.d, space_.k, words_of(task_.format, shape.d));
      pack_rows<Source>(task_.v, begin_, num_keys_, shape.dv, space_.v, words_of(task_.format, shape.dv));
      if (Source::kPerWord == 2)
        pack_summed_rows<Source>(task_.k, begin_, num_keys_, shape.d, space_.k_summed, shape.d);
    });
  }

  bool add_query_block(const BackwardHead& head, int64_t row) {
    QueryBlock<Products> queries;
    queries.num_rows = static_cast<int>(clamp(band_.q_len - row, 0, kQueryBlock));
    load_queries(head, row, queries);
    const int64_t last_row = row + queries.num_rows - 1;
    // Keys relative to the block: those that some row sees, and those that all rows see.
    const int64_t seen_begin =
        clamp(first_key(band_, row) - begin_, 0, num_keys_) / Products::kKeyStep * Products::kKeyStep;
    int64_t seen_end = clamp(end_key(band_, last_row) - begin_, 0, num_keys_);
    if (Products::kInTiles) seen_end = tile_keys(seen_end);  // with zeros past the last key
    int64_t full_begin = first_key(band_, last_row) - begin_, full_end = end_key(band_, row) - begin_;
    // Lanes past the last row see no key, so nothing is full for them.
    if (queries.num_rows < queries.num_vecs * kLanes) full_begin = full_end = seen_end;
    const bool has_masked_tiles = seen_begin < full_begin || seen_end > full_end;
    queries.finite = !has_masked_tiles || queries_finite(queries);
    for (int64_t key = seen_begin; key < seen_end; key += kKeyTile) {
      const int64_t num_keys = clamp(seen_end - key, 0, kKeyTile);
      const bool masked = key < full_begin || key + num_keys > full_end;
      tile_.run(queries, static_cast<int>(key), static_cast<int>(num_keys), masked);
    }
    return hand_over(head, row, queries.num_rows);
  }

  void load_queries(const BackwardHead& head, int64_t row, QueryBlock<Products>& queries) {
    const HeadShape& shape = task_.shape;
    const int num_rows = queries.num_rows;
    // In tiles the sums over rows go by 32.
    const int64_t columns = round_up(num_rows, Products::kInTiles ? 2 * kLanes : kLanes);
    queries.num_vecs = static_cast<int>(columns / kLanes);
    with_source(task_.format, [&](auto source) __attribute__((always_inline)) {
      using Source = decltype(source);
      const WordSign q_sign = word_sign(task_.format, task_.score.q_sign), plain = word_sign(task_.format, 1);
      pack_transposed<Source>(head.q, row, num_rows, shape.d, q_sign, space_.q_t, columns, kQueryBlock);
      pack_transposed<Source>(head.d_out, row, num_rows, shape.dv, plain, space_.d_out_t, columns, kQueryBlock);
      pack_summed_rows<Source>(head.q, row, num_rows, shape.d, space_.q, space_.ld_d);
      pack_summed_rows<Source>(head.d_out, row, num_rows, shape.dv, space_.d_out, space_.ld_dv);
    });
    if constexpr (Products::kInTiles) fill_query_tiles(num_rows);
    queries.q_t = words(space_.q_t);
    queries.d_out_t = words(space_.d_out_t);
    queries.q = words(space_.q);
    queries.d_out = words(space_.d_out);
    queries.dq_t = space_.dq_t;
    for (int64_t i = 0; i < columns; ++i) {
      const bool inside = i < num_rows;
      const int64_t at = row + (inside ? i : 0);
      queries.lse_log2[i] = inside ? head.lse_log2[at] : __builtin_inff();
      queries.delta[i] = inside ? head.delta[at] : 0.0f;
      queries.first_key[i] = inside ? static_cast<int32_t>(clamp(first_key(band_, at) - begin_, -1, num_keys_)) : 0;
      queries.last_key[i] = inside ? static_cast<int32_t>(clamp(end_key(band_, at) - 1 - begin_, -1, num_keys_)) : -1;
    }
    const int64_t d_rows = Products::kInTiles ? tile_rows(shape.d) : shape.d;
    clear(space_.dq_t, 0, d_rows * kQueryBlock);
  }

  bool queries_finite(const QueryBlock<Products>& queries) const {
    const int64_t rows = (queries.num_rows + Products::kPerWord - 1) / Products::kPerWord;
    return all_finite<Products>(queries.q, space_.ld_d, rows, space_.ld_d) &&
           all_finite<Products>(queries.d_out, space_.ld_dv, rows, space_.ld_dv);
  }

  // Zeros past the words and past the rows, up to whole tiles.
  void fill_query_tiles(int num_rows) {
    const int64_t pairs = (num_rows + 1) / 2, tile_pairs = tile_keys(num_rows) / 2;
    clear(space_.q_t, words_of(task_.format, task_.shape.d) * kQueryBlock, space_.d_words * kQueryBlock);
    clear(space_.d_out_t, words_of(task_.format, task_.shape.dv) * kQueryBlock, space_.dv_words * kQueryBlock);
    clear(space_.q, pairs * space_.ld_d, tile_pairs * space_.ld_d);
    clear(space_.d_out, pairs * space_.ld_dv, tile_pairs * space_.ld_dv);
  }

  static void clear(float* data, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) store(data + i, Vec{});
  }

  // Adds dK and dV to the totals and starts them anew.
  void end_part(bool first) {
    add_to(space_.dk_totals, space_.dk, num_keys_ * space_.ld_d, first);
    add_to(space_.dv_totals, space_.dv, num_keys_ * space_.ld_dv, first);
    clear(space_.dk, 0, num_keys_ * space_.ld_d);
    clear(space_.dv, 0, num_keys_ * space_.ld_dv);
  }
  void join_totals() {
    add_to(space_.dk, space_.dk_totals, num_keys_ * space_.ld_d, false);
    add_to(space_.dv, space_.dv_totals, num_keys_ * space_.ld_dv, false);
  }
  static void add_to(float* sums, const float* terms, int64_t size, bool first) {
    for (int64_t i = 0; i < size; i += kLanes)
      store(sums + i, first ? load(terms + i) : load(sums + i) + load(terms + i));
  }

  // Adds this key block's part of dQ when its turn has come; the last one of the query block writes the result.
  bool hand_over(const BackwardHead& head, int64_t row, int num_rows) {
    const KeyBlocks blocks = key_blocks_of(band_, task_.key_block_rows, row, num_rows);
    const int64_t size = task_.shape.d * kQueryBlock;
    const bool first = task_.key_block == blocks.first, last = task_.key_block + 1 == blocks.end;
    if (!(first && last)) {
      int32_t* turn = head.next_key_block + row / kQueryBlock;
      float* sums = head.dq_sums + row / kQueryBlock * size;
      if (!task_.wait_for_turn(task_.context, turn, static_cast<int32_t>(task_.key_block))) return false;
      float* to = last ? space_.dq_t : sums;
      for (int64_t i = 0; i < size; i += kLanes) {
        const Vec part = load(space_.dq_t + i);
        store(to + i, first ? part : load(sums + i) + part);
      }
      __atomic_store_n(turn, static_cast<int32_t>(task_.key_block + 1), __ATOMIC_RELEASE);
    }
    if (last) {
      const float scale = task_.scale;
      const auto scaled = [=](Vec x, int) __attribute__((always_inline)) { return x * scale; };
      store_transposed(task_.format.dtype, head.dq, row, num_rows, task_.shape.d, space_.dq_t, kQueryBlock, scaled);
    }
    return true;
  }

  void store_rows(const float* rows, int64_t ld, int64_t elems, float scale, OutputRows to) const {
    for (int64_t i = 0; i < num_keys_; ++i) {
      void* row = row_at(task_.format.dtype, to, begin_ + i);
      for (int64_t element = 0; element < elems; element += kLanes) {
        const int count = static_cast<int>(clamp(elems - element, 0, kLanes));
        store_elems(task_.format.dtype, row, element, load(rows + i * ld + element) * scale, count);
      }
    }
  }

  const BackwardTask& task_;
  const Band& band_;
  int64_t begin_, num_keys_;
  Workspace<Products> space_;
  KeyBlock<Products> keys_;
  TileBuffers buffers_;
  BackwardTile<Products> tile_;
};

}  // namespace
}  // namespace warpgrad::cpu::WARPGRAD_ISA
