#pragma once

// Plain descriptions shared by the scheduler (kda.cc) and the units compiled for each instruction set. No functions
// with external linkage here: the linker could keep a copy compiled for the wrong instruction set.

#include <cstdint>

#include "backends/cpu/kda/prefetch.h"
#include "core/dtype.h"
#include "ops/kda.h"

namespace warpgrad::cpu::kda {

constexpr int kChunk = static_cast<int>(ops::kKdaChunk);
constexpr int kBlock = 16;  // rows of a sub-block; dimensions are padded with zeros to a multiple
constexpr int kNumBlocks = kChunk / kBlock;
constexpr float kNormEpsilon = 1e-6f;  // of the q/k norm
constexpr int kColumns = 64;           // value columns of the state that are worked on together
// Row strides that are an odd number of cache lines, so that a walk down a column visits all cache sets.
constexpr int kPad = 16;
constexpr int kChunkStride = kChunk + kPad;     // of [., 64] matrices over tokens
constexpr int kColumnStride = kColumns + kPad;  // of a block of state columns

static constexpr int padded(int64_t n) {
  return static_cast<int>((n + kBlock - 1) / kBlock * kBlock);
}

// A tensor whose last dimension is dense: up to three strides, in elements, of the dimensions before it.
struct Operand {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t strides[3] = {0, 0, 0};
};

// At most 64 consecutive tokens of one sequence.
struct Chunk {
  int64_t batch;
  int64_t token;  // of the first row
  int64_t sequence;
  int rows;  // 1..64
};

// A sequence: its chunks are numbered first_chunk, ..., first_chunk + num_chunks - 1.
struct Sequence {
  int64_t first_chunk;
  int64_t num_chunks;
};

struct Problem {
  int64_t H, HV, K, V;
  int group;               // value heads of a q/k head
  int Kp, Vp;              // K and V padded
  int k_stride, v_stride;  // row strides of [64, K] and [64, V] matrices in the workspace
  int num_column_blocks;

  float scale, lower_bound;
  bool qk_l2_norm, beta_logits, allow_neg_eigval, state_vk;
  ops::GateKind gate;

  Operand q, k, v, g, beta;  // strides: batch, token, head
  const float* a_log;        // [HV] with stride a_log_stride, or null: a = 1
  int64_t a_log_stride;
  const float* dt_bias;  // [HV, K] with row stride dt_bias_stride, or null
  int64_t dt_bias_stride;
  Operand initial_state;                   // strides: sequence, head, row
  Operand out, final_state, chunk_states;  // forward; chunk_states: chunk, head, row
  // Backward.
  Operand d_out, d_final_state;
  Operand dq, dk, dv, dg, dbeta, d_initial_state;

  const Chunk* chunks;
};

// What the forward keeps for the backward, for one (chunk, value head); all null when nothing is kept.
struct Kept {
  float* S = nullptr;  // [K, V]    state at the start of the chunk
  float* E = nullptr;  // [64, V]   U = diag(beta) E
  float* T = nullptr;  // [64, 64]
};

// The operands of one chunk of one value head. Rows past the end of the sequence are zero up to a multiple of 16; what
// lies beyond that is undefined.
struct Prepared {
  // Read by the recurrences.
  float* Kd;      // [64, k_stride]
  float* Qd;      // [64, k_stride]
  float* KrT;     // [Kp, kChunkStride]   transpose of Kr
  float* Aqk;     // [64, kChunkStride]   zero above the diagonal
  float* T;       // [64, kChunkStride]   (I + N diag(beta))^-1
  float* exp_GC;  // [Kp]
  float* beta;    // [64]

  // Read by the gradients.
  float* N;         // [64, kChunkStride]
  float* q;         // [64, k_stride]   after the norm, times scale
  float* k;         // [64, k_stride]   after the norm
  float* a;         // [64, k_stride]   exp(g)
  float* in;        // [64, k_stride]   exp(G_i - G_before), "before" being the row before the 16-row block
  float* inv_in;    // [64, k_stride]   1 / in where in >= kSmallestIn, else 0
  float* out;       // [64, k_stride]   exp(G_end - G_i), "end" being the last row of the block
  float* block;     // [4, Kp]          exp(G_end - G_before)
  float* before;    // [4, Kp]          exp(G_before)
  int* first_slow;  // [4]  rows of the block from this one on don't use inv_in

  float* scratch;  // prepare_scratch_elems()
  Prefetch* ahead;
};

// One (chunk, value head) in the backward.
struct ChunkAdjoint {
  float* d_out;  // [64, v_stride]
  float* dU;     // [64, v_stride]
  float* dR;     // [64, v_stride]
  float* dS;     // [num_column_blocks][Kp, kColumnStride]  adjoint of the state at the end of the chunk
};

// The functions compiled for each instruction set.
struct Kernels {
  // Fills `prepared`. T is inverted if kept_T is null, copied from it otherwise.
  void (*prepare)(const Problem&, const Chunk&, int64_t head, const float* kept_T, const Prepared&);

  // One chunk of the recurrence, for one block of columns. `out` may be absent (state and kept only).
  void (*forward_step)(const Problem&, const Chunk&, int64_t head, int column_block, const Prepared&, const Kept&,
                       float* S, float* scratch);
  void (*keep_T)(const Problem&, const Chunk&, const Prepared&, const Kept&);

  // A block of columns of a state: from a tensor (zeros if absent), and to it (nothing if absent). `index` is that of
  // the tensor's first dimension: a sequence or a chunk.
  void (*load_state)(const Problem&, const Operand&, int64_t index, int64_t head, int column_block, float* S);
  void (*store_state)(const Problem&, const Operand&, int64_t index, int64_t head, int column_block, const float* S);

  // Loads d_out. Whether the chunk can go backward in its chunk form; false where one of its inputs is infinite or NaN.
  bool (*load_d_out)(const Problem&, const Chunk&, int64_t head, const Prepared&, const Kept&, const ChunkAdjoint&);

  // Backward through one chunk for one block of columns: dU, dR, dv from dS; then dS to the chunk before.
  void (*backward_rows)(const Problem&, const Chunk&, int64_t head, int column_block, const Prepared&,
                        const ChunkAdjoint&);
  void (*backward_state)(const Problem&, const Chunk&, int column_block, const Prepared&, const ChunkAdjoint&);

  // Adds the chunk's part of this value head to dq (before its factor scale) and dk, [64, k_stride], writes dg and
  // dbeta, and the partial sums for d_a_log ([1]) and d_dt_bias ([K]) to `partial`, if it isn't null.
  void (*gradients)(const Problem&, const Chunk&, int64_t head, const Prepared&, const Kept&, const ChunkAdjoint&,
                    float* dq, float* dk, float* partial, float* scratch);

  // The same token by token: dv and dS to the chunk before, for one block of columns; what `gradients` gives.
  void (*token_adjoint)(const Problem&, const Chunk&, int64_t head, int column_block, const Prepared&,
                        const ChunkAdjoint&);
  void (*token_gradients)(const Problem&, const Chunk&, int64_t head, const Prepared&, const Kept&, const ChunkAdjoint&,
                          float* dq, float* dk, float* partial, float* scratch);

  // Norm backward, and out.
  void (*store_qk_gradients)(const Problem&, const Chunk&, int64_t qk_head, float* dq, float* dk);
};

}  // namespace warpgrad::cpu::kda
