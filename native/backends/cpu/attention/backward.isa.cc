#include "backends/cpu/attention/backward_tile.h"
#include "backends/cpu/attention/pack.h"

// One block of keys against every block of query rows that sees it, for every query head that reads it: dK and dV stay
// here, dQ is added to sums that the tasks of a head share, in the order of their key blocks. See README.md.
namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

constexpr int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// Parts of the task's workspace.
template <class Products>
struct Workspace {
  using Word = typename Products::Word;
  int64_t ld_d, ld_dv;
  float *k, *v, *k_summed, *dk, *dv;
  float *q_t, *d_out_t, *q, *d_out, *dq_t;
  int64_t elems;

  Workspace(HeadShape shape, int64_t num_keys, float* base) {
    constexpr int64_t kPer = Products::kPerWord;
    ld_d = round_up(shape.d, kLanes);
    ld_dv = round_up(shape.dv, kLanes);
    const int64_t d_words = (shape.d + kPer - 1) / kPer, dv_words = (shape.dv + kPer - 1) / kPer;
    elems = 0;
    const auto part = [&](int64_t size) {
      float* start = base + elems;
      elems += round_up(size, 16);
      return start;
    };
    k = part(num_keys * d_words);
    v = part(num_keys * dv_words);
    k_summed = kPer == 1 ? k : part((num_keys + 1) / 2 * shape.d);
    dk = part(num_keys * ld_d);
    dv = part(num_keys * ld_dv);
    q_t = part(d_words * kQueryBlock);
    d_out_t = part(dv_words * kQueryBlock);
    q = part(kQueryBlock / kPer * ld_d);
    d_out = part(kQueryBlock / kPer * ld_dv);
    dq_t = part(shape.d * kQueryBlock);
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
    for (int64_t head = 0; head < task_.num_heads; ++head) {
      for (int64_t row = row_begin; row < row_end; row += kQueryBlock) {
        if (!add_query_block(task_.heads[head], row)) return;
      }
    }
    store_rows(space_.dk, space_.ld_d, task_.shape.d, task_.scale, task_.dk);
    store_rows(space_.dv, space_.ld_dv, task_.shape.dv, 1.0f, task_.dv);
  }

 private:
  static const Word* words(const float* data) { return reinterpret_cast<const Word*>(data); }

  void load_keys() {
    const HeadShape& shape = task_.shape;
    with_source(task_.format, [&](auto source) __attribute__((always_inline)) {
      using Source = decltype(source);
      pack_rows<Source>(task_.k, begin_, num_keys_, shape.d, space_.k, words_of(task_.format, shape.d));
      pack_rows<Source>(task_.v, begin_, num_keys_, shape.dv, space_.v, words_of(task_.format, shape.dv));
      if (Source::kPerWord == 2)
        pack_summed_rows<Source>(task_.k, begin_, num_keys_, shape.d, space_.k_summed, shape.d);
    });
    for (int64_t i = 0; i < num_keys_ * space_.ld_d; i += kLanes) store(space_.dk + i, Vec{});
    for (int64_t i = 0; i < num_keys_ * space_.ld_dv; i += kLanes) store(space_.dv + i, Vec{});
  }

  bool add_query_block(const BackwardHead& head, int64_t row) {
    QueryBlock<Products> queries;
    queries.num_rows = static_cast<int>(clamp(band_.q_len - row, 0, kQueryBlock));
    load_queries(head, row, queries);
    const int64_t last_row = row + queries.num_rows - 1;
    // Keys relative to the block: those that some row sees, and those that all rows see.
    const int64_t seen_begin =
        clamp(first_key(band_, row) - begin_, 0, num_keys_) / Products::kPerWord * Products::kPerWord;
    const int64_t seen_end = clamp(end_key(band_, last_row) - begin_, 0, num_keys_);
    const int64_t full_begin = first_key(band_, last_row) - begin_, full_end = end_key(band_, row) - begin_;
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
    const int64_t columns = round_up(num_rows, kLanes);
    queries.num_vecs = static_cast<int>(columns / kLanes);
    with_source(task_.format, [&](auto source) __attribute__((always_inline)) {
      using Source = decltype(source);
      const WordSign q_sign = word_sign(task_.format, task_.score.q_sign), plain = word_sign(task_.format, 1);
      pack_transposed<Source>(head.q, row, num_rows, shape.d, q_sign, space_.q_t, columns, kQueryBlock);
      pack_transposed<Source>(head.d_out, row, num_rows, shape.dv, plain, space_.d_out_t, columns, kQueryBlock);
      pack_summed_rows<Source>(head.q, row, num_rows, shape.d, space_.q, space_.ld_d);
      pack_summed_rows<Source>(head.d_out, row, num_rows, shape.dv, space_.d_out, space_.ld_dv);
    });
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
      queries.first_key[i] = static_cast<int32_t>(clamp(first_key(band_, at) - begin_, -1, num_keys_));
      queries.last_key[i] = static_cast<int32_t>(clamp(end_key(band_, at) - 1 - begin_, -1, num_keys_));
    }
    for (int64_t i = 0; i < shape.d * kQueryBlock; i += kLanes) store(space_.dq_t + i, Vec{});
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

int64_t backward_workspace_elems(Format format, HeadShape shape, int64_t num_keys) {
#if defined(__AVX512BF16__)
  if (format.pairs) return Workspace<PairProducts>(shape, num_keys, nullptr).elems;
#endif
  return Workspace<FloatProducts>(shape, num_keys, nullptr).elems;
}

void backward_keys(const BackwardTask& task) {
#if defined(__AVX512BF16__)
  if (task.format.pairs) return BackwardKeys<PairProducts>(task).run();
#endif
  BackwardKeys<FloatProducts>(task).run();
}

void backward_prepare(const PrepareTask& task) {
  with_source({task.dtype, false}, [&](auto source) __attribute__((always_inline)) {
    using Element = typename decltype(source)::Element;
    float d_sink = 0;
    for (int64_t row = task.row; row < task.row + task.num_rows; ++row) {
      const Element* d_out = static_cast<const Element*>(task.d_out.data) + row * task.d_out.stride;
      const Element* out = static_cast<const Element*>(task.out.data) + row * task.out.stride;
      Vec sum{};
      for (int64_t i = 0; i < task.dv; i += kLanes) {
        sum = fma(decltype(source)::words(d_out, i, task.dv), decltype(source)::words(out, i, task.dv), sum);
      }
      const float delta = reduce_add(sum);
      const float lse = task.lse[row];
      task.delta[row] = delta;
      task.lse_log2[row] = lse == -__builtin_inff() ? __builtin_inff() : lse * kLog2E;
      if (task.d_sink != nullptr) d_sink -= exp(splat(task.sink - lse))[0] * delta;
    }
    if (task.d_sink != nullptr) *task.d_sink = d_sink;
  });
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
