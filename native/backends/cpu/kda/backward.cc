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
         problem.group * (state_elems(problem) + kept_chunks * kept_elems(problem));
}

BackwardMemory backward_memory(const Problem& problem, float* memory) {
  const auto take = [&](int64_t count) {
    float* part = memory;
    memory += count;
    return part;
  };
  BackwardMemory result;
  float* record = take(record_elems(problem));
  result.prepared = prepared_views(problem, record, take(rest_elems(problem)));
  result.adjoint.d_out = take(rows_elems(problem));
  result.adjoint.dU = take(rows_elems(problem));
  result.adjoint.dR = take(rows_elems(problem));
  result.adjoint.dS = nullptr;
  result.gradients_scratch = take(std::max(gradients_scratch_elems(problem),
                                           state_elems(problem) + forward_scratch_elems(problem)));
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
  std::fill_n(memory.dq, qk_rows_elems(problem), 0.0f);
  std::fill_n(memory.dk, qk_rows_elems(problem), 0.0f);
  for (int64_t r = 0; r < problem.group; ++r) prepare_head(qk_head * problem.group + r);
  kernels.store_qk_gradients(problem, problem.chunks[i], qk_head, memory.dq, memory.dk);
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
  for_states([&](int64_t head, int c, float* dS) {
    kernels.load_state(problem, problem.d_final_state, n, head, c, dS);
  });
  for (int64_t i = sequence.first_chunk + sequence.num_chunks - 1; i >= sequence.first_chunk; --i) {
    const Chunk& chunk = problem.chunks[i];
    chunk_gradients(problem, kernels, i, qk_head, memory, [&](int64_t head) {
      const Kept kept_here = kept.at(problem, i, head);
      ChunkAdjoint adjoint = memory.adjoint;
      adjoint.dS = memory.dS + (head - first_head) * state_elems(problem);
      kernels.prepare(problem, chunk, head, kept_here.T, memory.prepared);
      for (int c = 0; c < problem.num_column_blocks; ++c) {
        kernels.backward_rows(problem, chunk, head, c, memory.prepared, adjoint);
      }
      kernels.gradients(problem, chunk, head, memory.prepared, kept_here, adjoint, memory.dq, memory.dk,
                        partials.at(i, head), memory.gradients_scratch);
      for (int c = 0; c < problem.num_column_blocks; ++c) {
        kernels.backward_state(problem, chunk, c, memory.prepared, adjoint);
      }
    });
  }
  for_states([&](int64_t head, int c, float* dS) {
    kernels.store_state(problem, problem.d_initial_state, n, head, c, dS);
  });
}

// The backward in tasks of chunks and of column blocks, one window after the other, the last one first.
void backward_in_windows(const Problem& problem, const Chunks& chunks, const KeptTensors& kept,
                         const Partials& partials, ExecContext& context) {
  const Kernels& kernels = kernels_for(context.isa());
  const int64_t num_sequences = static_cast<int64_t>(chunks.sequences.size()), HV = problem.HV;
  const int64_t block_elems = int64_t(problem.Kp) * kColumnStride, worker_elems = backward_memory_elems(problem, 0);
  const int64_t adjoint_elems = 3 * rows_elems(problem) + state_elems(problem);
  Window window(chunks, std::max<int64_t>(chunks.longest - 1, 0) / kWindow * kWindow);
  const int64_t max_chunks = window.max_chunks();
  const AlignedBuffer<float> states(num_sequences * HV * state_elems(problem));
  const AlignedBuffer<float> workers(context.num_threads() * worker_elems);
  const AlignedBuffer<float> records(max_chunks * HV * record_elems(problem));
  const AlignedBuffer<float> adjoints(max_chunks * HV * adjoint_elems);

  const auto memory_of = [&](int worker) {
    return backward_memory(problem, workers.data() + worker * worker_elems);
  };
  const auto prepared_at = [&](int64_t position, int64_t head, int worker) {
    float* rest = workers.data() + worker * worker_elems + record_elems(problem);
    return prepared_views(problem, records.data() + (position * HV + head) * record_elems(problem), rest);
  };
  const auto adjoint_at = [&](int64_t position, int64_t head) {
    float* d_out = adjoints.data() + (position * HV + head) * adjoint_elems;
    const int64_t rows = rows_elems(problem);
    return ChunkAdjoint{d_out, d_out + rows, d_out + 2 * rows, d_out + 3 * rows};
  };
  for (;; window = Window(chunks, window.begin - kWindow)) {
    const std::vector<int64_t>& in_window = window.chunks;
    const int64_t num_chunks = static_cast<int64_t>(in_window.size());
    context.parallel_for(num_chunks * HV, [&](int64_t task, int worker) {
      const int64_t position = task / HV, head = task % HV, i = in_window[position];
      kernels.prepare(problem, problem.chunks[i], head, kept.at(problem, i, head).T,
                      prepared_at(position, head, worker));
    });
    context.parallel_for(num_sequences * HV * problem.num_column_blocks, [&](int64_t task, int worker) {
      const int c = static_cast<int>(task % problem.num_column_blocks);
      const int64_t head = task / problem.num_column_blocks % HV, n = task / problem.num_column_blocks / HV;
      const Sequence& sequence = chunks.sequences[n];
      float* dS = states.data() + (n * HV + head) * state_elems(problem);
      if (window.is_last(sequence)) {
        kernels.load_state(problem, problem.d_final_state, n, head, c, dS + c * block_elems);
      }
      const int64_t end = std::min(sequence.num_chunks, window.end());
      for (int64_t local = end - 1; local >= window.begin; --local) {
        const Chunk& chunk = problem.chunks[sequence.first_chunk + local];
        const int64_t position = window.first_position[n] + local - window.begin;
        const Prepared prepared = prepared_at(position, head, worker);
        ChunkAdjoint adjoint = adjoint_at(position, head);
        std::copy_n(dS + c * block_elems, block_elems, adjoint.dS + c * block_elems);
        adjoint.dS = dS;
        kernels.backward_rows(problem, chunk, head, c, prepared, adjoint);
        kernels.backward_state(problem, chunk, c, prepared, adjoint);
      }
      if (window.begin == 0) {
        kernels.store_state(problem, problem.d_initial_state, n, head, c, dS + c * block_elems);
      }
    });
    context.parallel_for(num_chunks * problem.H, [&](int64_t task, int worker) {
      const int64_t position = task / problem.H, i = in_window[position];
      const BackwardMemory memory = memory_of(worker);
      chunk_gradients(problem, kernels, i, task % problem.H, memory, [&](int64_t head) {
        const Kept kept_here = kept.at(problem, i, head);
        kernels.prepare(problem, problem.chunks[i], head, kept_here.T, memory.prepared);
        kernels.gradients(problem, problem.chunks[i], head, memory.prepared, kept_here, adjoint_at(position, head),
                          memory.dq, memory.dk, partials.at(i, head), memory.gradients_scratch);
      });
    });
    if (window.begin == 0) return;
  }
}

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
  const Chunks chunks = chunks_of(params.options, params.q.shape[0], params.q.shape[1]);
  problem.chunks = chunks.chunks.data();
  const int64_t num_chunks = static_cast<int64_t>(chunks.chunks.size());
  const int64_t num_sequences = static_cast<int64_t>(chunks.sequences.size());
  const bool small = is_small(problem, num_chunks);
  const bool wants_partials = params.d_a_log || params.d_dt_bias;
  const AlignedBuffer<float> partial_sums(wants_partials ? num_chunks * problem.HV * (1 + problem.K) : 0);
  const Partials partials{wants_partials ? partial_sums.data() : nullptr, problem.HV, 1 + problem.K};
  KeptTensors kept = kept_in(params.saved, problem);

  for (const TensorView* output : {&params.dq, &params.dk, &params.dv, &params.dg, &params.dbeta}) {
    zero_after(*output, params.options);
  }
  if (!small && !whole_sequences_balance(chunks, problem.H, context.num_threads())) {
    const AlignedBuffer<float> recomputed(kept.S ? 0 : num_chunks * problem.HV * kept_elems(problem));
    if (!kept.S) {
      kept = kept_in(problem, recomputed.data(), num_chunks, 0, 0, problem.HV);
      forward_in_windows(problem, chunks, kept, context);
    }
    backward_in_windows(problem, chunks, kept, partials, context);
  } else {
    const Kernels& kernels = kernels_for(context.isa());
    const int64_t worker_elems = backward_memory_elems(problem, kept.S ? 0 : chunks.longest);
    const AlignedBuffer<float> workers((small ? 1 : context.num_threads()) * worker_elems);
    run_tasks(context, small, num_sequences * problem.H, [&](int64_t task, int worker) {
      const int64_t n = task / problem.H, qk_head = task % problem.H;
      backward_sequence(problem, kernels, chunks.sequences[n], n, qk_head, kept, partials,
                        backward_memory(problem, workers.data() + worker * worker_elems));
    });
  }
  reduce_partials(partials, num_chunks, params, small, context);
}

}  // namespace warpgrad::cpu
