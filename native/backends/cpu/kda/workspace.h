#pragma once

// The host side of the KDA kernels: sizes and layout of the workspace, and the numbering of chunks.

#include <vector>

#include "backends/cpu/kda/problem.h"
#include "backends/cpu/runtime/exec_context.h"

namespace warpgrad::cpu::kda {

const Kernels& kernels_for(Isa isa);

// Sequences and their chunks, numbered through the sequences in order.
struct Chunks {
  std::vector<Chunk> chunks;
  std::vector<Sequence> sequences;
  int64_t longest = 0;  // chunks of the longest sequence
};
// Without tokens there are sequences only where their states are asked for: any number of them may be empty.
Chunks chunks_of(const ops::KdaOptions& options, int64_t batch, int64_t tokens, bool wants_states);

// Fills what the forward and the backward have in common.
Problem problem_of(const ops::KdaOptions& options, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& g, const TensorView& beta, const TensorView& a_log, const TensorView& dt_bias,
                   const TensorView& initial_state);
Operand operand_of(const TensorView& view);

// Sizes in floats.
int64_t record_elems(const Problem& problem);   // of Prepared: what the recurrences read
int64_t rest_elems(const Problem& problem);     //              what the gradients read, and scratch
int64_t state_elems(const Problem& problem);    // [num_column_blocks][Kp, kColumnStride]
int64_t rows_elems(const Problem& problem);     // [64, v_stride]
int64_t qk_rows_elems(const Problem& problem);  // [64, k_stride]
int64_t forward_scratch_elems(const Problem& problem);
int64_t gradients_scratch_elems(const Problem& problem);

Prepared prepared_views(const Problem& problem, float* record, float* rest, Prefetch* ahead);

// What a chunk of one head will read and write.
Prefetch forward_prefetch(const Problem& problem, const Chunk& chunk, int64_t head);
Prefetch backward_prefetch(const Problem& problem, const Chunk& chunk, int64_t head, const Kept& kept);

// Where the tensors that the forward keeps lie: [chunks, heads, ...] each, from one chunk and head on.
struct KeptTensors {
  float* S = nullptr;
  float* E = nullptr;
  float* T = nullptr;
  int64_t first_chunk = 0, first_head = 0, num_heads = 0;

  Kept at(const Problem& problem, int64_t chunk, int64_t head) const;
};
int64_t kept_elems(int64_t K, int64_t V);  // of one chunk and head, S, E and T together
KeptTensors kept_in(const Problem& problem, float* memory, int64_t num_chunks, int64_t first_chunk, int64_t first_head,
                    int64_t num_heads);
// Of the saving mode; none when absent.
KeptTensors kept_in(const TensorView& saved, const Problem& problem, int64_t num_chunks);

// Whether a (sequence, head) a task keeps the threads about as busy as finer tasks would: `tasks` per sequence.
bool whole_sequences_balance(const Chunks& chunks, int64_t tasks, int num_threads);

// Runs body(task, worker) for all tasks, on the calling thread alone if `small`.
void run_tasks(ExecContext& context, bool small, int64_t num_tasks, ThreadPool::Task body);

// So little work that waking other threads costs more.
bool is_small(const Problem& problem, int64_t num_chunks);

}  // namespace warpgrad::cpu::kda
