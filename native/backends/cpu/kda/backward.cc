// The backward: tasks, their order and their workspace. README.md explains the two schedules.

#include <algorithm>
#include <cstring>

#include "backends/cpu/kda/schedule.h"
#include "backends/cpu/kernels.h"

namespace warpgrad::cpu {
namespace kda {
namespace {

// A worker's memory for one chunk, and for the adjoint states of one q/k head's value heads.
struct BackwardMemory {
  Prepared prepared;
  ChunkAdjoint adjoint;
  float* gradients_scratch;
  float* dq;
  float* dk;
  float* dS;    // [group] states
  float* kept;  // what the forward keeps for one sequence, in the recomputing mode
};

int64_t backward_memory_elems(const Problem& problem, int64_t kept_chunks) {
  const int64_t forward = state_elems(problem) + forward_scratch_elems(problem);
  return record_elems(problem) + rest_elems(problem) + 3 * rows_elems(problem) +
         std::max(gradients_scratch_elems(problem), forward) + 2 * qk_rows_elems(problem) +
         problem.group * (state_elems(problem) + kept_chunks * kept_elems(problem.K, problem.V));
}

BackwardMemory backward_memory(const Problem& problem, float* memory, Prefetch* ahead) {
  const auto take = [&](int64_t count) {
    float* part = memory;
    memory += count;
    return part;
  };
  BackwardMemory result;
  float* record = take(record_elems(problem));
  result.prepared = prepared_views(problem, record, take(rest_elems(problem)), ahead);
  result.adjoint.d_out = take(rows_elems(problem));
  result.adjoint.dU = take(rows_elems(problem));
  result.adjoint.dR = take(rows_elems(problem));
  result.adjoint.dS = nullptr;
  result.gradients_scratch =
      take(std::max(gradients_scratch_elems(problem), state_elems(problem) + forward_scratch_elems(problem)));
  result.dq = take(qk_rows_elems(problem));
  result.dk = take(qk_rows_elems(problem));
  result.dS = take(problem.group * state_elems(problem));
  result.kept = memory;
  return result;
}

// One partial sum for d_a_log and K for d_dt_bias, of each chunk and value head.
struct Partials {
  float* data;  // null if neither is wanted
  int64_t HV, width;
  float* at(int64_t chunk, int64_t head) const { return data ? data + (chunk * HV + head) * width : nullptr; }
};

// dq and dk of a chunk, summed over the value heads of a q/k head in their order.
template <class PrepareHead>
void chunk_gradients(const Problem& problem, const Kernels& kernels, int64_t i, int64_t qk_head,
                     const BackwardMemory& memory, PrepareHead prepare_head) {
  const int64_t elems = int64_t(padded(problem.chunks[i].rows)) * problem.k_stride;
  std::fill_n(memory.dq, elems, 0.0f);
  std::fill_n(memory.dk, elems, 0.0f);
  for (int64_t r = 0; r < problem.group; ++r) prepare_head(qk_head * problem.group + r);
  kernels.store_qk_gradients(problem, problem.chunks[i], qk_head, memory.dq, memory.dk);
}

// Of what comes after chunk i and this value head: the next head of the group, or the chunk before.
Prefetch prefetch_after(const Problem& problem, const KeptTensors& kept, const Sequence& sequence, int64_t i,
                        int64_t head) {
  const bool last_head = (head + 1) % problem.group == 0;
  const int64_t next_head = last_head ? head + 1 - problem.group : head + 1, next = last_head ? i - 1 : i;
  if (next < sequence.first_chunk) return {};
  return backward_prefetch(problem, problem.chunks[next], next_head, kept.at(problem, next, next_head));
}

// Last chunk first; the chunk's gradients while its operands are in cache.
void backward_sequence(const Problem& problem, const Kernels& kernels, const Sequence& sequence, int64_t n,
                       int64_t qk_head, KeptTensors kept, const Partials& partials, BackwardMemory memory) {
  const int64_t first_head = qk_head * problem.group, block_elems = int64_t(problem.Kp) * kColumnStride;
  if (!kept.S) {
    kept = kept_in(problem, memory.kept, sequence.num_chunks, sequence.first_chunk, first_head, problem.group);
    float* S = memory.gradients_scratch;
    for (int64_t r = 0; r < problem.group; ++r) {
      forward_sequence(problem, kernels, sequence, n, first_head + r, kept,
                       {memory.prepared, S, S + state_elems(problem)});
    }
  }
  const auto for_states = [&](auto body) {
    for (int64_t r = 0; r < problem.group; ++r) {
      for (int c = 0; c < problem.num_column_blocks; ++c) {
        body(first_head + r, c, memory.dS + r * state_elems(problem) + c * block_elems);
      }
    }
  };
  for_states(
      [&](int64_t head, int c, float* dS) { kernels.load_state(problem, problem.d_final_state, n, head, c, dS); });
  for (int64_t i = sequence.first_chunk + sequence.num_chunks - 1; i >= sequence.first_chunk; --i) {
    const Chunk& chunk = problem.chunks[i];
    chunk_gradients(problem, kernels, i, qk_head, memory, [&](int64_t head) {
      const Kept kept_here = kept.at(problem, i, head);
      *memory.prepared.ahead = prefetch_after(problem, kept, sequence, i, head);
      ChunkAdjoint adjoint = memory.adjoint;
      adjoint.dS = memory.dS + (head - first_head) * state_elems(problem);
      kernels.prepare(problem, chunk, head, kept_here.T, memory.prepared);
      const bool finite = kernels.load_d_out(problem, chunk, head, memory.prepared, kept_here, adjoint);
      for (int c = 0; finite && c < problem.num_column_blocks; ++c) {
        kernels.backward_rows(problem, chunk, head, c, memory.prepared, adjoint);
      }
      const auto gradients = finite ? kernels.gradients : kernels.token_gradients;
      gradients(problem, chunk, head, memory.prepared, kept_here, adjoint, memory.dq, memory.dk, partials.at(i, head),
                memory.gradients_scratch);
      for (int c = 0; c < problem.num_column_blocks; ++c) {
        if (finite) {
          kernels.backward_state(problem, chunk, c, memory.prepared, adjoint);
        } else {
          kernels.token_adjoint(problem, chunk, head, c, memory.prepared, adjoint);
        }
      }
    });
  }
  for_states(
      [&](int64_t head, int c, float* dS) { kernels.store_state(problem, problem.d_initial_state, n, head, c, dS); });
}

// The backward in tasks of chunks and of column blocks, one window after the other, the last one first.
class WindowedBackward {
 public:
  WindowedBackward(const Problem& problem, const Chunks& chunks, const KeptTensors& kept, const Partials& partials,
                   ExecContext& context)
      : problem_(problem),
        kernels_(kernels_for(context.isa())),
        chunks_(chunks),
        kept_(kept),
        partials_(partials),
        context_(context),
        window_(chunks, std::max<int64_t>(chunks.longest - 1, 0) / kWindow * kWindow),
        worker_elems_(backward_memory_elems(problem, 0)),
        adjoint_elems_(3 * rows_elems(problem) + state_elems(problem)),
        states_(chunks.sequences.size() * problem.HV * state_elems(problem)),
        workers_(context.num_threads() * worker_elems_),
        records_(window_.max_chunks() * problem.HV * record_elems(problem)),
        adjoints_(window_.max_chunks() * problem.HV * adjoint_elems_),
        finite_(window_.max_chunks() * problem.HV) {}

  void run() {
    for (;; window_ = Window(chunks_, window_.begin - kWindow)) {
      prepare_chunks();
      pass_adjoints();
      finish_chunks();
      if (window_.begin == 0) return;
    }
  }

 private:
  int64_t num_chunks() const { return static_cast<int64_t>(window_.chunks.size()); }
  BackwardMemory memory_of(int worker) {
    return backward_memory(problem_, workers_.data() + worker * worker_elems_, &no_prefetch_);
  }
  Prepared prepared_at(int64_t position, int64_t head, int worker) {
    float* record = records_.data() + (position * problem_.HV + head) * record_elems(problem_);
    float* rest = workers_.data() + worker * worker_elems_ + record_elems(problem_);
    return prepared_views(problem_, record, rest, &no_prefetch_);
  }
  ChunkAdjoint adjoint_at(int64_t position, int64_t head) {
    float* d_out = adjoints_.data() + (position * problem_.HV + head) * adjoint_elems_;
    const int64_t rows = rows_elems(problem_);
    return {d_out, d_out + rows, d_out + 2 * rows, d_out + 3 * rows};
  }

  void prepare_chunks() {
    context_.parallel_for(num_chunks() * problem_.HV, [&](int64_t task, int worker) {
      const int64_t position = task / problem_.HV, head = task % problem_.HV, i = window_.chunks[position];
      const Prepared prepared = prepared_at(position, head, worker);
      const Kept kept_here = kept_.at(problem_, i, head);
      kernels_.prepare(problem_, problem_.chunks[i], head, kept_here.T, prepared);
      finite_[task] =
          kernels_.load_d_out(problem_, problem_.chunks[i], head, prepared, kept_here, adjoint_at(position, head));
    });
  }

  // dS from the end of the window to its start, a copy for each chunk left behind.
  void pass_adjoints() {
    const int64_t HV = problem_.HV, block_elems = int64_t(problem_.Kp) * kColumnStride;
    const int64_t blocks = problem_.num_column_blocks, num_sequences = static_cast<int64_t>(chunks_.sequences.size());
    context_.parallel_for(num_sequences * HV * blocks, [&](int64_t task, int worker) {
      const int c = static_cast<int>(task % blocks);
      const int64_t head = task / blocks % HV, n = task / blocks / HV;
      const Sequence& sequence = chunks_.sequences[n];
      float* dS = states_.data() + (n * HV + head) * state_elems(problem_);
      if (window_.is_last(sequence)) {
        kernels_.load_state(problem_, problem_.d_final_state, n, head, c, dS + c * block_elems);
      }
      for (int64_t local = std::min(sequence.num_chunks, window_.end()) - 1; local >= window_.begin; --local) {
        const Chunk& chunk = problem_.chunks[sequence.first_chunk + local];
        const int64_t position = window_.first_position[n] + local - window_.begin;
        ChunkAdjoint adjoint = adjoint_at(position, head);
        std::copy_n(dS + c * block_elems, block_elems, adjoint.dS + c * block_elems);
        adjoint.dS = dS;
        if (finite_[position * HV + head]) {
          const Prepared prepared = prepared_at(position, head, worker);
          kernels_.backward_rows(problem_, chunk, head, c, prepared, adjoint);
          kernels_.backward_state(problem_, chunk, c, prepared, adjoint);
        } else {
          const Prepared prepared = memory_of(worker).prepared;
          kernels_.prepare(problem_, chunk, head, kept_.at(problem_, sequence.first_chunk + local, head).T, prepared);
          kernels_.token_adjoint(problem_, chunk, head, c, prepared, adjoint);
        }
      }
      if (window_.begin == 0) {
        kernels_.store_state(problem_, problem_.d_initial_state, n, head, c, dS + c * block_elems);
      }
    });
  }

  void finish_chunks() {
    context_.parallel_for(num_chunks() * problem_.H, [&](int64_t task, int worker) {
      const int64_t position = task / problem_.H, i = window_.chunks[position];
      const BackwardMemory memory = memory_of(worker);
      chunk_gradients(problem_, kernels_, i, task % problem_.H, memory, [&](int64_t head) {
        const Kept kept_here = kept_.at(problem_, i, head);
        kernels_.prepare(problem_, problem_.chunks[i], head, kept_here.T, memory.prepared);
        const auto gradients = finite_[position * problem_.HV + head] ? kernels_.gradients : kernels_.token_gradients;
        gradients(problem_, problem_.chunks[i], head, memory.prepared, kept_here, adjoint_at(position, head), memory.dq,
                  memory.dk, partials_.at(i, head), memory.gradients_scratch);
      });
    });
  }

  const Problem& problem_;
  const Kernels& kernels_;
  const Chunks& chunks_;
  const KeptTensors& kept_;
  const Partials& partials_;
  ExecContext& context_;
  Window window_;
  const int64_t worker_elems_, adjoint_elems_;
  const AlignedBuffer<float> states_, workers_, records_, adjoints_;
  std::vector<uint8_t> finite_;  // whether a chunk and head goes in the chunk form
  Prefetch no_prefetch_;
};

// d_a_log and d_dt_bias: the partial sums of all chunks, in their order, in double precision.
void reduce_partials(const Partials& partials, int64_t num_chunks, const ops::KdaBackwardParams& params, bool small,
                     ExecContext& context) {
  if (!partials.data) return;
  run_tasks(context, small, partials.HV, [&](int64_t head, int) {
    for (int64_t column = 0; column < partials.width; ++column) {
      const TensorView& target = column == 0 ? params.d_a_log : params.d_dt_bias;
      if (!target) continue;
      double sum = 0;
      for (int64_t i = 0; i < num_chunks; ++i) sum += partials.at(i, head)[column];
      target.as<float>()[column == 0 ? head : head * (partials.width - 1) + column - 1] = static_cast<float>(sum);
    }
  });
}

}  // namespace
}  // namespace kda

void kda_backward(const ops::KdaBackwardParams& params, ExecContext& context) {
  using namespace kda;
  Problem problem = problem_of(params.options, params.q, params.k, params.v, params.g, params.beta, params.a_log,
                               params.dt_bias, params.initial_state);
  problem.d_out = operand_of(params.d_out);
  problem.d_final_state = operand_of(params.d_final_state);
  problem.dq = operand_of(params.dq);
  problem.dk = operand_of(params.dk);
  problem.dv = operand_of(params.dv);
  problem.dg = operand_of(params.dg);
  problem.dbeta = operand_of(params.dbeta);
  problem.d_initial_state = operand_of(params.d_initial_state);
  const bool wants_states = static_cast<bool>(params.d_initial_state);
  const Chunks chunks = chunks_of(params.options, params.q.shape[0], params.q.shape[1], wants_states);
  problem.chunks = chunks.chunks.data();
  const int64_t num_chunks = static_cast<int64_t>(chunks.chunks.size());
  const int64_t num_sequences = static_cast<int64_t>(chunks.sequences.size());
  const bool small = is_small(problem, num_chunks);
  const bool wants_partials = params.d_a_log || params.d_dt_bias;
  const AlignedBuffer<float> partial_sums(wants_partials ? num_chunks * problem.HV * (1 + problem.K) : 0);
  const Partials partials{wants_partials ? partial_sums.data() : nullptr, problem.HV, 1 + problem.K};
  KeptTensors kept = kept_in(params.saved, problem, num_chunks);

  for (const TensorView* output : {&params.dq, &params.dk, &params.dv, &params.dg, &params.dbeta}) {
    zero_after(*output, params.options);
  }
  if (!small && !whole_sequences_balance(chunks, problem.H, context.num_threads())) {
    const AlignedBuffer<float> recomputed(kept.S ? 0 : num_chunks * problem.HV * kept_elems(problem.K, problem.V));
    if (!kept.S) {
      kept = kept_in(problem, recomputed.data(), num_chunks, 0, 0, problem.HV);
      forward_in_windows(problem, chunks, kept, context);
    }
    WindowedBackward(problem, chunks, kept, partials, context).run();
  } else {
    const Kernels& kernels = kernels_for(context.isa());
    const int64_t worker_elems = backward_memory_elems(problem, kept.S ? 0 : chunks.longest);
    const AlignedBuffer<float> workers((small ? 1 : context.num_threads()) * worker_elems);
    run_tasks(context, small, num_sequences * problem.H, [&](int64_t task, int worker) {
      const int64_t n = task / problem.H, qk_head = task % problem.H;
      Prefetch ahead;
      backward_sequence(problem, kernels, chunks.sequences[n], n, qk_head, kept, partials,
                        backward_memory(problem, workers.data() + worker * worker_elems, &ahead));
    });
  }
  reduce_partials(partials, num_chunks, params, small, context);
}

}  // namespace warpgrad::cpu
