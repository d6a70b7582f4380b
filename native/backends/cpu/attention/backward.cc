#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "backends/cpu/attention/run_tasks.h"
#include "backends/cpu/attention/sequences.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/simd/dispatch.h"

namespace warpgrad::cpu {

#define WARPGRAD_BACKWARD_KERNELS                                                                           \
  int64_t backward_workspace_elems(attention::Format format, attention::HeadShape shape, int64_t num_keys); \
  void backward_keys(const attention::BackwardTask& task);
WARPGRAD_DECLARE_ISA(void backward_prepare(const attention::PrepareTask& task); WARPGRAD_BACKWARD_KERNELS)
WARPGRAD_DECLARE_AMX(WARPGRAD_BACKWARD_KERNELS)
#undef WARPGRAD_BACKWARD_KERNELS

namespace {

using namespace attention;

// Query blocks that one preparing task covers.
constexpr int64_t kPrepareRows = 4 * kQueryBlock;

bool wait_for_turn(const void* context, const int32_t* turn, int32_t value) {
  constexpr int kSpins = 1000;  // then let the thread whose turn it is run
  for (int i = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != value; ++i) {
    if (static_cast<const ExecContext*>(context)->stopped()) return false;
    if (i > kSpins) std::this_thread::yield();
  }
  return true;
}

void clear(const TensorView& output) {
  if (output) std::memset(output.data, 0, static_cast<size_t>(output.num_elems()) * dtype_bytes(output.dtype));
}

class Backward {
 public:
  Backward(const ops::AttentionBackwardParams& params, ExecContext& context)
      : params_(params),
        context_(context),
        sequences_(params.options, params.q, params.k),
        format_(format_for(params.q.dtype, context.isa())),
        shape_{params.q.shape[params.q.rank - 1], params.v.shape[params.v.rank - 1]},
        score_(make_score_map(params.options)) {
    plan();
  }

  void run() {
    const bool serial = operations_ < kSerialOperations;
    run_tasks(context_, prepare_tasks_.count(), serial, [&](int64_t task, int) { prepare(task); });
    run_tasks(context_, key_tasks_.count(), serial, [&](int64_t task, int worker) { run_keys(task, worker); });
    if (params_.d_sink) add_up_d_sink();
    clear_unused_rows(params_.dq, sequences_.used_q_rows());
    clear_unused_rows(params_.dk, sequences_.used_k_rows());
    clear_unused_rows(params_.dv, sequences_.used_k_rows());
  }

 private:
  void plan() {
    const int64_t count = sequences_.count(), heads = sequences_.num_heads();
    prepare_tasks_.reserve(count);
    key_tasks_.reserve(count);
    query_blocks_before_.reserve(count);
    summed_blocks_before_.reserve(count);
    int64_t query_blocks = 0, summed_blocks = 0, most_keys = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Sequence sequence = sequences_[i];
      query_blocks_before_.push_back(query_blocks);
      summed_blocks_before_.push_back(summed_blocks);
      query_blocks += num_query_blocks(sequence);
      if (num_key_blocks(sequence) > 1) summed_blocks += num_query_blocks(sequence);
      prepare_tasks_.add((sequence.q_len + kPrepareRows - 1) / kPrepareRows * heads);
      key_tasks_.add(num_key_blocks(sequence) * sequences_.num_kv_heads());
      most_keys = std::max(most_keys, std::min(sequence.k_len, key_block_rows(sequence)));
      operations_ += 5.0 * sequence.q_len * sequence.k_len * heads * (shape_.d + shape_.dv);
    }
    lse_log2_ = AlignedBuffer<float>(sequences_.num_head_rows());
    delta_ = AlignedBuffer<float>(sequences_.num_head_rows());
    if (params_.d_sink) d_sink_parts_ = AlignedBuffer<float>(prepare_tasks_.count());
    next_key_block_ = AlignedBuffer<int32_t>(query_blocks * heads);
    dq_sums_ = AlignedBuffer<float>(summed_blocks * heads * kQueryBlock * shape_.d);
    workspace_elems_ =
        WARPGRAD_SELECT_AMX(format_.tiles, context_.isa(), backward_workspace_elems)(format_, shape_, most_keys);
    const int workers = operations_ < kSerialOperations ? 1 : context_.num_threads();
    workspaces_ = AlignedBuffer<float>(workers * workspace_elems_);
  }

  // Large blocks read the queries less often, small ones give more threads work. It depends on the sequence alone, for
  // the result must not depend on the threads or the batch.
  int64_t key_block_rows(const Sequence& sequence) const {
    const int64_t largest = shape_.d + shape_.dv > 256 ? 128 : 256;
    return std::clamp<int64_t>(sequence.k_len / 8 / kKeyTile * kKeyTile, 2 * kKeyTile, largest);
  }
  int64_t num_key_blocks(const Sequence& sequence) const {
    const int64_t rows = key_block_rows(sequence);
    return (sequence.k_len + rows - 1) / rows;
  }
  static int64_t num_query_blocks(const Sequence& sequence) { return (sequence.q_len + kQueryBlock - 1) / kQueryBlock; }

  int32_t* next_key_block(int64_t index, int64_t head) const {
    return next_key_block_.data() + query_blocks_before_[index] * sequences_.num_heads() +
           head * num_query_blocks(sequences_[index]);
  }

  void prepare(int64_t task) const {
    const auto [index, part] = prepare_tasks_.find(task);
    const Sequence sequence = sequences_[index];
    const int64_t head = part % sequences_.num_heads();
    const int64_t row = part / sequences_.num_heads() * kPrepareRows;
    const int64_t at = sequences_.head_row_offset(sequence, head);
    PrepareTask rows{};
    rows.dtype = format_.dtype;
    rows.dv = shape_.dv;
    rows.row = row;
    rows.num_rows = static_cast<int>(std::min(kPrepareRows, sequence.q_len - row));
    rows.d_out = sequences_.rows(params_.d_out, sequence, sequence.q_begin, head);
    rows.out = sequences_.rows(params_.out, sequence, sequence.q_begin, head);
    rows.lse = params_.lse.as<float>() + at;
    rows.lse_log2 = lse_log2_.data() + at;
    rows.delta = delta_.data() + at;
    if (params_.d_sink) {
      rows.sink = params_.sink.as<float>()[head * params_.sink.strides[0]];
      rows.d_sink = d_sink_parts_.data() + task;
    }
    WARPGRAD_SELECT_ISA(context_.isa(), backward_prepare)(rows);
    for (int64_t i = row; i < row + rows.num_rows; i += kQueryBlock) start_query_block(index, sequence, head, i);
  }

  // Whose turn comes first, or a zero gradient where no row sees a key.
  void start_query_block(int64_t index, const Sequence& sequence, int64_t head, int64_t row) const {
    const int64_t num_rows = std::min<int64_t>(kQueryBlock, sequence.q_len - row);
    const KeyBlocks blocks = key_blocks_of(sequences_.band(sequence), key_block_rows(sequence), row, num_rows);
    next_key_block(index, head)[row / kQueryBlock] = static_cast<int32_t>(blocks.first);
    if (blocks.first < blocks.end) return;
    const OutputRows dq = sequences_.output_rows(params_.dq, sequence, sequence.q_begin, head);
    const int64_t elem_bytes = static_cast<int64_t>(dtype_bytes(format_.dtype));
    for (int64_t i = row; i < row + num_rows; ++i) {
      char* to = static_cast<char*>(dq.data) + i * dq.stride * elem_bytes;
      std::fill(to, to + shape_.d * elem_bytes, char{0});
    }
  }

  void run_keys(int64_t number, int worker) const {
    const auto [index, part] = key_tasks_.find(number);
    const Sequence sequence = sequences_[index];
    // The blocks of one head apart from each other, for they take turns in adding to dQ.
    const int64_t kv_head = part % sequences_.num_kv_heads();
    std::vector<BackwardHead> heads(sequences_.group());
    for (int64_t i = 0; i < sequences_.group(); ++i) {
      heads[i] = backward_head(index, sequence, kv_head * sequences_.group() + i);
    }
    BackwardTask task{};
    task.format = format_;
    task.shape = shape_;
    task.score = score_;
    task.scale = params_.options.scale;
    task.band = sequences_.band(sequence);
    task.key_block_rows = key_block_rows(sequence);
    task.key_block = part / sequences_.num_kv_heads();
    task.k = sequences_.rows(params_.k, sequence, sequence.k_begin, kv_head);
    task.v = sequences_.rows(params_.v, sequence, sequence.k_begin, kv_head);
    task.dk = sequences_.output_rows(params_.dk, sequence, sequence.k_begin, kv_head);
    task.dv = sequences_.output_rows(params_.dv, sequence, sequence.k_begin, kv_head);
    task.heads = heads.data();
    task.num_heads = sequences_.group();
    task.workspace = workspaces_.data() + worker * workspace_elems_;
    task.wait_for_turn = wait_for_turn;
    task.context = &context_;
    WARPGRAD_SELECT_AMX(format_.tiles, context_.isa(), backward_keys)(task);
  }

  BackwardHead backward_head(int64_t index, const Sequence& sequence, int64_t head) const {
    const int64_t at = sequences_.head_row_offset(sequence, head);
    const int64_t blocks = num_query_blocks(sequence);
    const int64_t sums_before = summed_blocks_before_[index] * sequences_.num_heads() + head * blocks;
    return {sequences_.rows(params_.q, sequence, sequence.q_begin, head),
            sequences_.rows(params_.d_out, sequence, sequence.q_begin, head),
            lse_log2_.data() + at,
            delta_.data() + at,
            sequences_.output_rows(params_.dq, sequence, sequence.q_begin, head),
            num_key_blocks(sequence) > 1 ? dq_sums_.data() + sums_before * kQueryBlock * shape_.d : nullptr,
            next_key_block(index, head)};
  }

  // In the order of the tasks, so that it doesn't depend on the threads.
  void add_up_d_sink() const {
    std::vector<double> sums(sequences_.num_heads(), 0);
    for (int64_t task = 0; task < prepare_tasks_.count(); ++task) {
      sums[prepare_tasks_.find(task).index % sequences_.num_heads()] += d_sink_parts_.data()[task];
    }
    for (int64_t head = 0; head < sequences_.num_heads(); ++head) {
      params_.d_sink.as<float>()[head] = static_cast<float>(sums[head]);
    }
  }

  const ops::AttentionBackwardParams& params_;
  ExecContext& context_;
  Sequences sequences_;
  Format format_;
  HeadShape shape_;
  ScoreMap score_;
  TaskList prepare_tasks_, key_tasks_;
  std::vector<int64_t> query_blocks_before_, summed_blocks_before_;  // by sequence
  AlignedBuffer<float> lse_log2_, delta_, d_sink_parts_, dq_sums_, workspaces_;
  AlignedBuffer<int32_t> next_key_block_;
  int64_t workspace_elems_ = 0;
  double operations_ = 0;
};

}  // namespace

void attention_backward(const ops::AttentionBackwardParams& params, ExecContext& context) {
  if (params.q.num_elems() == 0) {  // however many sequences or heads there are
    for (const TensorView* gradient : {&params.dk, &params.dv, &params.d_sink}) clear(*gradient);
    return;
  }
  Backward(params, context).run();
}

}  // namespace warpgrad::cpu
