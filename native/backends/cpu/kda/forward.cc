// The forward: tasks, their order and their workspace. README.md explains the two schedules.

#include <algorithm>
#include <cstring>

#include "backends/cpu/kda/schedule.h"
#include "backends/cpu/kernels.h"

namespace warpgrad::cpu {
namespace kda {

void forward_sequence(const Problem& problem, const Kernels& kernels, const Sequence& sequence, int64_t n, int64_t head,
                      const KeptTensors& kept, const ForwardMemory& memory) {
  const int64_t block_elems = int64_t(problem.Kp) * kColumnStride;
  for (int c = 0; c < problem.num_column_blocks; ++c) {
    kernels.load_state(problem, problem.initial_state, n, head, c, memory.S + c * block_elems);
  }
  const int64_t end = sequence.first_chunk + sequence.num_chunks;
  for (int64_t i = sequence.first_chunk; i < end; ++i) {
    const Chunk& chunk = problem.chunks[i];
    *memory.prepared.ahead = i + 1 < end ? forward_prefetch(problem, problem.chunks[i + 1], head) : Prefetch{};
    const Kept kept_here = kept.at(problem, i, head);
    kernels.prepare(problem, chunk, head, nullptr, memory.prepared);
    if (kept_here.T) kernels.keep_T(problem, chunk, memory.prepared, kept_here);
    for (int c = 0; c < problem.num_column_blocks; ++c) {
      float* S = memory.S + c * block_elems;
      kernels.store_state(problem, problem.chunk_states, i, head, c, S);
      kernels.forward_step(problem, chunk, head, c, memory.prepared, kept_here, S, memory.scratch);
    }
  }
  for (int c = 0; c < problem.num_column_blocks; ++c) {
    kernels.store_state(problem, problem.final_state, n, head, c, memory.S + c * block_elems);
  }
}

int64_t forward_memory_elems(const Problem& problem) {
  return record_elems(problem) + rest_elems(problem) + state_elems(problem) + forward_scratch_elems(problem);
}

ForwardMemory forward_memory(const Problem& problem, float* memory, Prefetch* ahead) {
  float* rest = memory + record_elems(problem);
  float* S = rest + rest_elems(problem);
  return {prepared_views(problem, memory, rest, ahead), S, S + state_elems(problem)};
}

void forward_in_windows(const Problem& problem, const Chunks& chunks, const KeptTensors& kept, ExecContext& context) {
  const Kernels& kernels = kernels_for(context.isa());
  const int64_t num_sequences = static_cast<int64_t>(chunks.sequences.size()), HV = problem.HV;
  const int64_t block_elems = int64_t(problem.Kp) * kColumnStride, worker_elems = forward_memory_elems(problem);
  const AlignedBuffer<float> states(num_sequences * HV * state_elems(problem));
  const AlignedBuffer<float> workers(context.num_threads() * worker_elems);
  Window window(chunks);
  const AlignedBuffer<float> records(window.max_chunks() * HV * record_elems(problem));

  for (; window.begin < chunks.longest || window.begin == 0; window.advance()) {
    const std::vector<int64_t>& in_window = window.chunks;
    const auto record = [&](int64_t position, int64_t head) {
      return records.data() + (position * HV + head) * record_elems(problem);
    };
    context.parallel_for(static_cast<int64_t>(in_window.size()) * HV, [&](int64_t task, int worker) {
      const int64_t position = task / HV, head = task % HV, i = in_window[position];
      float* rest = workers.data() + worker * worker_elems;
      Prefetch none;
      const Prepared prepared = prepared_views(problem, record(position, head), rest, &none);
      kernels.prepare(problem, problem.chunks[i], head, nullptr, prepared);
      const Kept kept_here = kept.at(problem, i, head);
      if (kept_here.T) kernels.keep_T(problem, problem.chunks[i], prepared, kept_here);
    });
    context.parallel_for(num_sequences * HV * problem.num_column_blocks, [&](int64_t task, int worker) {
      const int c = static_cast<int>(task % problem.num_column_blocks);
      const int64_t head = task / problem.num_column_blocks % HV, n = task / problem.num_column_blocks / HV;
      const Sequence& sequence = chunks.sequences[n];
      float* S = states.data() + (n * HV + head) * state_elems(problem) + c * block_elems;
      float* rest = workers.data() + worker * worker_elems;
      float* scratch = rest + rest_elems(problem);
      if (window.begin == 0) kernels.load_state(problem, problem.initial_state, n, head, c, S);
      const int64_t end = std::min(sequence.num_chunks, window.end());
      for (int64_t local = window.begin; local < end; ++local) {
        const int64_t i = sequence.first_chunk + local, position = window.first_position[n] + local - window.begin;
        Prefetch none;
        kernels.store_state(problem, problem.chunk_states, i, head, c, S);
        kernels.forward_step(problem, problem.chunks[i], head, c,
                             prepared_views(problem, record(position, head), rest, &none), kept.at(problem, i, head), S,
                             scratch);
      }
      if (window.is_last(sequence)) kernels.store_state(problem, problem.final_state, n, head, c, S);
    });
  }
}

}  // namespace kda

void kda_forward(const ops::KdaForwardParams& params, ExecContext& context) {
  using namespace kda;
  Problem problem = problem_of(params.options, params.q, params.k, params.v, params.g, params.beta, params.a_log,
                               params.dt_bias, params.initial_state);
  problem.out = operand_of(params.out);
  problem.final_state = operand_of(params.final_state);
  problem.chunk_states = operand_of(params.chunk_states);
  const int64_t batch = params.q.shape[0], tokens = params.q.shape[1];
  const Chunks chunks = chunks_of(params.options, batch, tokens, static_cast<bool>(params.final_state));
  problem.chunks = chunks.chunks.data();
  const int64_t num_chunks = static_cast<int64_t>(chunks.chunks.size());
  const int64_t num_sequences = static_cast<int64_t>(chunks.sequences.size());
  const KeptTensors kept = kept_in(params.saved, problem, num_chunks);
  const bool small = is_small(problem, num_chunks);

  zero_after(params.out, params.options);
  if (!small && !whole_sequences_balance(chunks, problem.HV, context.num_threads())) {
    forward_in_windows(problem, chunks, kept, context);
    return;
  }
  const Kernels& kernels = kernels_for(context.isa());
  const int64_t worker_elems = forward_memory_elems(problem);
  const AlignedBuffer<float> workers((small ? 1 : context.num_threads()) * worker_elems);
  run_tasks(context, small, num_sequences * problem.HV, [&](int64_t task, int worker) {
    const int64_t n = task / problem.HV, head = task % problem.HV;
    Prefetch ahead;
    forward_sequence(problem, kernels, chunks.sequences[n], n, head, kept,
                     forward_memory(problem, workers.data() + worker * worker_elems, &ahead));
  });
}

}  // namespace warpgrad::cpu
