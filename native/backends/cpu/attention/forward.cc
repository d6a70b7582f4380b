#include <algorithm>
#include <limits>

#include "backends/cpu/attention/run_tasks.h"
#include "backends/cpu/attention/sequences.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/simd/dispatch.h"

namespace warpgrad::cpu {

#define WARPGRAD_FORWARD_KERNELS                                                                                \
  void forward_block(const attention::ForwardBlock& block);                                                     \
  void pack_keys(attention::Format format, attention::Rows keys, int64_t begin, int64_t end, int64_t elems,     \
                 void* packed);                                                                                 \
  void pack_values(attention::Format format, attention::Rows values, int64_t begin, int64_t end, int64_t elems, \
                   void* packed);
WARPGRAD_DECLARE_ISA(int forward_block_rows(); WARPGRAD_FORWARD_KERNELS)
WARPGRAD_DECLARE_AMX(WARPGRAD_FORWARD_KERNELS)
#undef WARPGRAD_FORWARD_KERNELS

namespace {

using namespace attention;

constexpr int64_t kPackRows = 256;  // rows of K and V that one packing task copies

class Forward {
 public:
  Forward(const ops::AttentionForwardParams& params, ExecContext& context)
      : params_(params),
        context_(context),
        sequences_(params.options, params.q, params.k),
        format_(format_for(params.q.dtype, context.isa())),
        shape_{params.q.shape[params.q.rank - 1], params.v.shape[params.v.rank - 1]},
        score_(make_score_map(params.options)),
        block_rows_(WARPGRAD_SELECT_ISA(context.isa(), forward_block_rows)()) {
    plan();
  }

  void run() {
    const bool serial = operations_ < kSerialOperations;
    run_tasks(context_, pack_tasks_.count(), serial, [&](int64_t task, int) { pack(task); });
    run_tasks(context_, block_tasks_.count(), serial, [&](int64_t task, int) { run_block(task); });
    clear_unused();
  }

 private:
  void plan() {
    const int64_t count = sequences_.count();
    pack_tasks_.reserve(count);
    block_tasks_.reserve(count);
    packed_rows_before_.reserve(count);
    int64_t packed_rows = 0, single_queries = 0;
    for (int64_t i = 0; i < count; ++i) single_queries += sequences_[i].q_len == 1;
    // As many as leave work for every thread. A row's result doesn't depend on the other rows of its block.
    heads_per_block_ = std::clamp<int64_t>(single_queries * sequences_.num_heads() / context_.num_threads(), 1,
                                           std::min(sequences_.group(), block_rows_));
    for (int64_t i = 0; i < count; ++i) {
      const Sequence sequence = sequences_[i];
      block_tasks_.add(num_blocks(sequence) * num_head_blocks(sequence) * sequences_.num_kv_heads());
      packed_rows_before_.push_back(packed_rows);
      const bool packed = needs_packing(sequence);
      if (packed) packed_rows += rounded_rows(sequence.k_len);
      pack_tasks_.add(packed ? (sequence.k_len + kPackRows - 1) / kPackRows * sequences_.num_kv_heads() : 0);
      operations_ += 2.0 * sequence.q_len * sequence.k_len * sequences_.num_heads() * (shape_.d + shape_.dv);
    }
    const int64_t kv_heads = sequences_.num_kv_heads();
    packed_k_ = AlignedBuffer<uint32_t>(packed_rows * kv_heads * key_words());
    packed_v_ = AlignedBuffer<uint32_t>(packed_rows * kv_heads * value_words() / (format_.pairs ? 2 : 1));
  }

  // float32 rows serve as they are, which is worth it where few blocks read them.
  bool needs_packing(const Sequence& sequence) const {
    return format_.dtype != DType::kFloat32 || num_blocks(sequence) * num_head_blocks(sequence) > 2;
  }
  int64_t num_blocks(const Sequence& sequence) const { return (sequence.q_len + block_rows_ - 1) / block_rows_; }
  // Blocks that the query heads of a key head take beside each other.
  int64_t num_head_blocks(const Sequence& sequence) const {
    const int64_t heads = sequence.q_len == 1 ? heads_per_block_ : 1;
    return (sequences_.group() + heads - 1) / heads;
  }
  int64_t key_words() const {
    if (format_.tiles) return tile_words(shape_.d);
    return format_.pairs ? (shape_.d + 1) / 2 : shape_.d;
  }
  int64_t value_words() const { return format_.tiles ? tile_rows(shape_.dv) : shape_.dv; }
  int64_t rounded_rows(int64_t rows) const { return format_.tiles ? tile_keys(rows) : (rows + 1) / 2 * 2; }

  Words keys(int64_t sequence, int64_t kv_head) const {
    return {packed_k_.data() + packed_row(sequence, kv_head) * key_words(), key_words()};
  }
  Words values(int64_t sequence, int64_t kv_head) const {
    return {packed_v_.data() + packed_row(sequence, kv_head) / (format_.pairs ? 2 : 1) * value_words(), value_words()};
  }
  int64_t packed_row(int64_t sequence, int64_t kv_head) const {
    return packed_rows_before_[sequence] * sequences_.num_kv_heads() +
           kv_head * rounded_rows(sequences_[sequence].k_len);
  }

  void pack(int64_t task) const {
    const auto [index, part] = pack_tasks_.find(task);
    const Sequence sequence = sequences_[index];
    const int64_t kv_head = part % sequences_.num_kv_heads();
    const int64_t begin = part / sequences_.num_kv_heads() * kPackRows;
    const int64_t end = std::min(begin + kPackRows, sequence.k_len);
    const Rows k = sequences_.rows(params_.k, sequence, sequence.k_begin, kv_head);
    const Rows v = sequences_.rows(params_.v, sequence, sequence.k_begin, kv_head);
    WARPGRAD_SELECT_AMX(format_.tiles, context_.isa(), pack_keys)
    (format_, k, begin, end, shape_.d, const_cast<void*>(keys(index, kv_head).data));
    WARPGRAD_SELECT_AMX(format_.tiles, context_.isa(), pack_values)
    (format_, v, begin, end, shape_.dv, const_cast<void*>(values(index, kv_head).data));
  }

  void run_block(int64_t task) const {
    const auto [index, part] = block_tasks_.find(task);
    const Sequence sequence = sequences_[index];
    // The last block of a head first: under a causal mask it is the longest.
    const int64_t blocks = num_blocks(sequence), head_blocks = num_head_blocks(sequence);
    const int64_t kv_head = part / blocks / head_blocks;
    const int64_t first = part / blocks % head_blocks * (sequence.q_len == 1 ? heads_per_block_ : 1);
    const int64_t head = kv_head * sequences_.group() + first;
    const bool rows_are_heads = sequence.q_len == 1;
    const int64_t row = rows_are_heads ? 0 : (blocks - 1 - part % blocks) * block_rows_;
    const int64_t rows = rows_are_heads ? std::min(heads_per_block_, sequences_.group() - first) : sequence.q_len - row;
    ForwardBlock block{};
    block.format = format_;
    block.shape = shape_;
    block.score = score_;
    block.band = sequences_.band(sequence);
    block.row = row;
    block.num_rows = static_cast<int>(std::min(block_rows_, rows));
    block.rows_are_heads = rows_are_heads;
    if (params_.sink) {
      block.sink = params_.sink.as<float>() + head * params_.sink.strides[0];
      block.sink_stride = rows_are_heads ? params_.sink.strides[0] : 0;
    }
    block.q = sequences_.rows(params_.q, sequence, sequence.q_begin, head);
    if (needs_packing(sequence)) {
      block.k = keys(index, kv_head);
      block.v = values(index, kv_head);
    } else {
      const Rows k = sequences_.rows(params_.k, sequence, sequence.k_begin, kv_head);
      const Rows v = sequences_.rows(params_.v, sequence, sequence.k_begin, kv_head);
      block.k = {k.data, k.stride};
      block.v = {v.data, v.stride};
    }
    block.out = sequences_.output_rows(params_.out, sequence, sequence.q_begin, head);
    block.lse = params_.lse.as<float>() + sequences_.head_row_offset(sequence, head);
    block.lse_stride = 1;
    if (rows_are_heads) {
      block.q.stride = params_.q.strides[params_.q.rank - 2];
      block.out.stride = params_.out.strides[params_.out.rank - 2];
      block.lse_stride = sequences_.q_rows();
    }
    WARPGRAD_SELECT_AMX(format_.tiles, context_.isa(), forward_block)(block);
  }

  void clear_unused() const {
    clear_unused_rows(params_.out, sequences_.used_q_rows());
    for (int64_t head = 0; params_.out.rank == 3 && head < sequences_.num_heads(); ++head) {
      float* lse = params_.lse.as<float>() + head * sequences_.q_rows();
      std::fill(lse + sequences_.used_q_rows(), lse + sequences_.q_rows(), -std::numeric_limits<float>::infinity());
    }
  }

  const ops::AttentionForwardParams& params_;
  ExecContext& context_;
  Sequences sequences_;
  Format format_;
  HeadShape shape_;
  ScoreMap score_;
  int64_t block_rows_, heads_per_block_ = 1;
  TaskList pack_tasks_, block_tasks_;
  std::vector<int64_t> packed_rows_before_;  // by sequence, each rounded up
  AlignedBuffer<uint32_t> packed_k_, packed_v_;
  double operations_ = 0;
};

}  // namespace

void attention_forward(const ops::AttentionForwardParams& params, ExecContext& context) {
  if (params.out.num_elems() == 0) return;  // however many sequences, heads or keys there are
  Forward(params, context).run();
}

}  // namespace warpgrad::cpu
