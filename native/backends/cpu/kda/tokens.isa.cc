// The backward of a chunk that holds an infinity or NaN, token by token as docs/kda.md §1 defines the recurrence. The
// chunk form multiplies with exact zeros, which such a number would carry to tokens that don't depend on it.

#include "backends/cpu/kda/chunk_units.h"
#include "backends/cpu/kda/gate.h"
#include "backends/cpu/kda/product.h"
#include "backends/cpu/kda/rows.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

using kda::Chunk;
using kda::ChunkAdjoint;
using kda::kBlock;
using kda::kChunk;
using kda::kColumns;
using kda::kColumnStride;
using kda::Kept;
using kda::kNumBlocks;
using kda::Operand;
using kda::Prepared;
using kda::Problem;

// One vector of value columns; states are [Kp] vectors.
struct ColumnVector {
  const Problem& problem;
  const Chunk& chunk;
  int64_t head;
  int first, count;
  const Prepared& p;

  const float* q(int i) const { return p.q + i * problem.k_stride; }
  const float* k(int i) const { return p.k + i * problem.k_stride; }
  const float* a(int i) const { return p.a + i * problem.k_stride; }

  Vec token(const Operand& from, int i) const {
    float row[kBlock];
    load_row(from, offset_of(from, chunk.batch, chunk.token + i, head) + first, count, row);
    return load(row);
  }

  // What the delta rule writes, before its factor beta: v - k^T (exp(g) S).
  Vec error(int i, const float* S) const {
    Vec sum = token(problem.v, i);
    for (int d = 0; d < problem.Kp; ++d) sum -= k(i)[d] * (a(i)[d] * load(S + d * kLanes));
    return sum;
  }

  void advance(int i, const float* before, float* after) const {
    const Vec update = p.beta[i] * error(i, before);
    for (int d = 0; d < problem.Kp; ++d) {
      store(after + d * kLanes, k(i)[d] * update + a(i)[d] * load(before + d * kLanes));
    }
  }

  // The adjoint dS, rows `stride` apart, of the state after token i takes in the token's output; the result is dv.
  Vec add_output(int i, Vec d_out, float* dS, int64_t stride) const {
    Vec dv{};
    for (int d = 0; d < problem.Kp; ++d) {
      const Vec adjoint = load(dS + d * stride) + q(i)[d] * d_out;
      store(dS + d * stride, adjoint);
      dv += k(i)[d] * adjoint;
    }
    return p.beta[i] * dv;
  }

  // Then it becomes that of the decayed state before the token; times exp(g) that of the state before.
  void pass_update(int i, Vec dv, float* dS, int64_t stride) const {
    for (int d = 0; d < problem.Kp; ++d) store(dS + d * stride, load(dS + d * stride) - k(i)[d] * dv);
  }
  void pass_decay(int i, float* dS, int64_t stride) const {
    for (int d = 0; d < problem.Kp; ++d) store(dS + d * stride, a(i)[d] * load(dS + d * stride));
  }
};

// Sums over the columns, each with the sums of the columns before.
struct TokenSums {
  float *dq, *dk, *dg, *dbeta;  // of the token
};

// From the adjoint of the state after token i to that of the state before it, with the token's gradients.
void retreat(const ColumnVector& columns, int i, const float* before, const float* after, float* dS,
             const TokenSums& sums) {
  const int Kp = columns.problem.Kp;
  const Vec d_out = columns.token(columns.problem.d_out, i), error = columns.error(i, before);
  const Vec dv = columns.add_output(i, d_out, dS, kLanes);
  const float *a = columns.a(i), beta = columns.p.beta[i];
  Vec dbeta{};
  for (int d = 0; d < Kp; ++d) {
    const Vec adjoint = load(dS + d * kLanes), decayed = a[d] * load(before + d * kLanes);
    sums.dq[d] += reduce_add(load(after + d * kLanes) * d_out);
    sums.dk[d] += reduce_add(beta * (adjoint * error) - decayed * dv);
    dbeta += columns.k(i)[d] * (adjoint * error);
  }
  *sums.dbeta += reduce_add(dbeta);
  columns.pass_update(i, dv, dS, kLanes);
  for (int d = 0; d < Kp; ++d) {
    sums.dg[d] += reduce_add(load(dS + d * kLanes) * (a[d] * load(before + d * kLanes)));
  }
  columns.pass_decay(i, dS, kLanes);
}

bool dense_finite(int64_t count, const float* x) {
  IVec not_finite{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int left = static_cast<int>(count - i < kLanes ? count - i : kLanes);
    const Vec value = load_partial(x + i, left);
    not_finite |= value - value != 0.0f;
  }
  return !any(not_finite);
}

// The states before every token of a block, from checkpoints at the blocks' starts, so that few have to be kept.
struct States {
  float* checkpoints;  // [4][Kp, kLanes]
  float* block;        // [17][Kp, kLanes]
  float* dS;           // [Kp, kLanes]
};

void column_gradients(const ColumnVector& columns, const Kept& kept, const float* dS_end, const States& states,
                      float* dq, float* dk, float* dg, float* dbeta) {
  const Problem& problem = columns.problem;
  const int K = static_cast<int>(problem.K), size = problem.Kp * kLanes, ks = problem.k_stride;
  const int rows = columns.chunk.rows;
  const auto state = [&](int i) { return states.block + i * size; };
  const auto replay = [&](int first) {
    for (int i = first; i < smaller(first + kBlock, rows); ++i) {
      columns.advance(i, state(i - first), state(i - first + 1));
    }
  };
  const auto copy = [&](const float* from, float* to) {
    for (int i = 0; i < size; i += kLanes) store(to + i, load(from + i));
  };
  const Operand from{kept.S, DType::kFloat32, {}};
  for (int d = 0; d < problem.Kp; ++d) {
    float row[kBlock] = {};
    if (d < K) load_row(from, d * problem.V + columns.first, columns.count, row);
    store(states.block + d * kLanes, load(row));
    store(states.dS + d * kLanes, load(dS_end + d * kColumnStride));
  }
  for (int first = 0; first < rows; first += kBlock) {
    if (first > 0) copy(state(kBlock), state(0));
    copy(state(0), states.checkpoints + first / kBlock * size);
    replay(first);
  }
  for (int first = (rows - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
    copy(states.checkpoints + first / kBlock * size, state(0));
    replay(first);
    for (int i = smaller(first + kBlock, rows) - 1; i >= first; --i) {
      retreat(columns, i, state(i - first), state(i - first + 1), states.dS,
              {dq + i * ks, dk + i * ks, dg + i * ks, dbeta + i});
    }
  }
}

}  // namespace

bool kda_load_d_out(const Problem& problem, const Chunk& chunk, int64_t head, const Prepared& p, const Kept& kept,
                    const ChunkAdjoint& adjoint) {
  const int V = static_cast<int>(problem.V), Kp = problem.Kp;
  const int rows = kda::padded(chunk.rows), ks = problem.k_stride;
  load_chunk_rows(problem.d_out, chunk, head, 0, V, adjoint.d_out, problem.v_stride);
  if (!all_finite(rows, Kp, p.q, ks) || !all_finite(rows, Kp, p.k, ks) || !all_finite(rows, Kp, p.a, ks)) return false;
  if (!all_finite(1, kChunk, p.beta, 0) || !all_finite(rows, problem.Vp, adjoint.d_out, problem.v_stride)) return false;
  // Where the state has such a number already, what it makes of E reaches no more than the state does.
  return dense_finite(int64_t(chunk.rows) * V, kept.E) || !dense_finite(problem.K * V, kept.S);
}

void kda_token_adjoint(const Problem& problem, const Chunk& chunk, int64_t head, int column_block, const Prepared& p,
                       const ChunkAdjoint& adjoint) {
  const int first_column = column_block * kColumns;
  const int end = first_column + smaller(kColumns, static_cast<int>(problem.V) - first_column);
  float* dS = adjoint.dS + int64_t(column_block) * problem.Kp * kColumnStride;
  for (int c = first_column; c < end; c += kLanes, dS += kLanes) {
    const ColumnVector columns{problem, chunk, head, c, smaller(kLanes, end - c), p};
    for (int i = chunk.rows - 1; i >= 0; --i) {
      const Vec dv = columns.add_output(i, columns.token(problem.d_out, i), dS, kColumnStride);
      columns.pass_update(i, dv, dS, kColumnStride);
      columns.pass_decay(i, dS, kColumnStride);
      float row[kBlock];
      store(row, dv);
      store_row(problem.dv, offset_of(problem.dv, chunk.batch, chunk.token + i, head) + c, columns.count, row);
    }
  }
}

void kda_token_gradients(const Problem& problem, const Chunk& chunk, int64_t head, const Prepared& p, const Kept& kept,
                         const ChunkAdjoint& adjoint, float* dq, float* dk, float* partial, float* scratch) {
  const int V = static_cast<int>(problem.V), Kp = problem.Kp, ks = problem.k_stride;
  float* dg = scratch;              // [64, k_stride]
  float* dbeta = dg + kChunk * ks;  // [64]
  float* d_bias = dbeta + kChunk;   // [Kp]
  float* block = d_bias + Kp;
  const States states{block + (kBlock + 1) * Kp * kLanes, block, block + (kBlock + 1 + kNumBlocks) * Kp * kLanes};
  zero_rows(0, kChunk, Kp, dg, ks);
  zero_rows(0, 1, kChunk, dbeta, 0);
  for (int c = 0; c < V; c += kLanes) {
    const float* dS = adjoint.dS + int64_t(c / kColumns) * Kp * kColumnStride + c % kColumns;
    column_gradients({problem, chunk, head, c, smaller(kLanes, V - c), p}, kept, dS, states, dq, dk, dg, dbeta);
  }
  store_gate_gradients(problem, chunk, head, dg, dbeta, d_bias, partial);
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
