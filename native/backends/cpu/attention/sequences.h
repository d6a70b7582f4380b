#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/cpu/attention/block.h"
#include "backends/cpu/runtime/isa.h"
#include "ops/attention.h"

namespace warpgrad::cpu::attention {

// One sequence of a batch, dense or packed. All arithmetic on sequences, heads and offsets is in this file.
struct Sequence {
  int64_t batch;  // 0 when packed
  int64_t q_begin, q_len;
  int64_t k_begin, k_len;
};

class Sequences {
 public:
  Sequences(const ops::AttentionOptions& options, const TensorView& q, const TensorView& k)
      : options_(options),
        packed_(q.rank == 3),
        q_rows_(q.shape[q.rank - 3]),
        k_rows_(k.shape[k.rank - 3]),
        batch_(packed_ ? 1 : q.shape[0]),
        num_heads_(q.shape[q.rank - 2]),
        num_kv_heads_(k.shape[k.rank - 2]) {}

  int64_t count() const { return packed_ ? static_cast<int64_t>(options_.cu_seqlens_q.size()) - 1 : batch_; }
  int64_t num_heads() const { return num_heads_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t group() const { return num_heads_ / num_kv_heads_; }

  Sequence operator[](int64_t index) const {
    if (!packed_) return {index, 0, q_rows_, 0, k_rows_};
    const auto &cu_q = options_.cu_seqlens_q, &cu_k = options_.cu_seqlens_k;
    return {0, cu_q[index], cu_q[index + 1] - cu_q[index], cu_k[index], cu_k[index + 1] - cu_k[index]};
  }

  Band band(const Sequence& sequence) const {
    return make_band(sequence.q_len, sequence.k_len, options_.window_left, options_.window_right);
  }

  // A head's rows of one sequence: `begin` is its q_begin or k_begin.
  Rows rows(const TensorView& tensor, const Sequence& sequence, int64_t begin, int64_t head) const {
    return {element(tensor, sequence, begin, head), tensor.strides[tensor.rank - 3]};
  }
  OutputRows output_rows(const TensorView& tensor, const Sequence& sequence, int64_t begin, int64_t head) const {
    return {element(tensor, sequence, begin, head), tensor.strides[tensor.rank - 3]};
  }

  // Where the sequence's part of a [B, H, Sq] or [H, total_q] array starts.
  int64_t head_row_offset(const Sequence& sequence, int64_t head) const {
    return (sequence.batch * num_heads_ + head) * q_rows_ + sequence.q_begin;
  }
  int64_t num_head_rows() const { return batch_ * num_heads_ * q_rows_; }

  // Rows of the tensors that belong to a sequence: what lies beyond is set to 0 in every output.
  int64_t used_q_rows() const { return packed_ ? options_.cu_seqlens_q.back() : q_rows_; }
  int64_t used_k_rows() const { return packed_ ? options_.cu_seqlens_k.back() : k_rows_; }
  int64_t q_rows() const { return q_rows_; }
  int64_t k_rows() const { return k_rows_; }

 private:
  static void* element(const TensorView& tensor, const Sequence& sequence, int64_t row, int64_t head) {
    const int64_t offset = (tensor.rank == 4 ? sequence.batch * tensor.strides[0] : 0) +
                           row * tensor.strides[tensor.rank - 3] + head * tensor.strides[tensor.rank - 2];
    return tensor.as<char>() + offset * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  }

  const ops::AttentionOptions& options_;
  bool packed_;
  int64_t q_rows_, k_rows_, batch_, num_heads_, num_kv_heads_;
};

// Tasks numbered through the sequences: which sequence a task belongs to, and which one of it.
class TaskList {
 public:
  void reserve(int64_t num_sequences) { ends_.reserve(num_sequences); }
  void add(int64_t num_tasks) { ends_.push_back(count() + num_tasks); }
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  struct Position {
    int64_t sequence, index;
  };
  Position find(int64_t task) const {
    const int64_t sequence = std::upper_bound(ends_.begin(), ends_.end(), task) - ends_.begin();
    return {sequence, task - (sequence == 0 ? 0 : ends_[sequence - 1])};
  }

 private:
  std::vector<int64_t> ends_;
};

// The same for forward and backward.
Format format_for(DType dtype, Isa isa);
ScoreMap make_score_map(const ops::AttentionOptions& options);

// Zero in the rows from `used_rows` on of a contiguous packed tensor.
void clear_unused_rows(const TensorView& tensor, int64_t used_rows);

}  // namespace warpgrad::cpu::attention
