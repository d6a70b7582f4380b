// One chunk of the forward recurrence for one block of value columns, and the way states get in and out.

#include "backends/cpu/kda/chunk_units.h"
#include "backends/cpu/kda/product.h"
#include "backends/cpu/kda/rows.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

using kda::Chunk;
using kda::kChunk;
using kda::kChunkStride;
using kda::kColumns;
using kda::kColumnStride;
using kda::Kept;
using kda::Operand;
using kda::Prepared;
using kda::Problem;

// S [Kp, kColumnStride] goes from the start of the chunk to its end.
void kda_forward_step(const Problem& problem, const Chunk& chunk, int64_t head, int column_block, const Prepared& p,
                      const Kept& kept, float* S, float* scratch) {
  const int K = static_cast<int>(problem.K), V = static_cast<int>(problem.V), Kp = problem.Kp;
  const int first_column = column_block * kColumns;
  const int count = smaller(kColumns, V - first_column);
  const int columns = kda::padded(count), rows = kda::padded(chunk.rows);
  float* R = scratch;                     // [64, kColumnStride]
  float* E = R + kChunk * kColumnStride;  // [64, kColumnStride]
  float* o = E + kChunk * kColumnStride;  // [64, kColumnStride]

  if (kept.S) {
    const Operand to{kept.S, DType::kFloat32, {}};
    for (int d = 0; d < K; ++d) store_row(to, d * problem.V + first_column, count, S + d * kColumnStride);
  }
  // R = v - Kd S
  load_chunk_rows(problem.v, chunk, head, first_column, count, R, kColumnStride);
  product<Into::kSubtract>(rows, columns, Kp, rows_of(p.Kd, problem.k_stride), S, kColumnStride, R, kColumnStride,
                           p.ahead);
  // E = (I + N diag(beta))^-1 R: what the delta rule writes, before its factor beta
  lower_product<Into::kStore>(rows, columns, p.T, kChunkStride, R, E, kColumnStride, p.ahead);
  if (kept.E) {
    const Operand to{kept.E, DType::kFloat32, {}};
    zero_rows(chunk.rows, kChunk, columns, E, kColumnStride);
    for (int i = 0; i < kChunk; ++i) store_row(to, i * problem.V + first_column, count, E + i * kColumnStride);
  }
  float* U = R;
  scale_rows(rows, columns, p.beta, E, U, kColumnStride);  // U = beta E
  if (problem.out.data) {
    // o = Qd S + Aqk U
    product<Into::kStore>(rows, columns, Kp, rows_of(p.Qd, problem.k_stride), S, kColumnStride, o, kColumnStride,
                          p.ahead);
    lower_product<Into::kAdd>(rows, columns, p.Aqk, kChunkStride, U, o, kColumnStride, p.ahead);
    store_chunk_rows(problem.out, chunk, head, first_column, count, o, kColumnStride);
  }
  // S' = exp(G_C) S + Kr^T U
  scale_rows(Kp, columns, p.exp_GC, S, S, kColumnStride);
  product<Into::kAdd>(Kp, columns, rows, rows_of(p.KrT, kChunkStride), U, kColumnStride, S, kColumnStride, p.ahead);
}

void kda_keep_T(const Problem& problem, const Chunk& chunk, const Prepared& p, const Kept& kept) {
  const int rows = kda::padded(chunk.rows);
  for (int i = 0; i < kChunk; ++i) {
    for (int j = 0; j < kChunk; j += kLanes) {
      store(kept.T + i * kChunk + j, i < rows ? load(p.T + i * kChunkStride + j) : Vec{});
    }
  }
}

void kda_load_state(const Problem& problem, const Operand& from, int64_t index, int64_t head, int column_block,
                    float* S) {
  const int K = static_cast<int>(problem.K);
  const int first_column = column_block * kColumns;
  const int count = smaller(kColumns, static_cast<int>(problem.V) - first_column);
  zero_rows(0, problem.Kp, kda::padded(count), S, kColumnStride);
  if (!from.data) return;
  const int64_t base = offset_of(from, index, head, 0), row_stride = from.strides[2];
  if (!problem.state_vk) {
    for (int d = 0; d < K; ++d) load_row(from, base + d * row_stride + first_column, count, S + d * kColumnStride);
    return;
  }
  for (int c = 0; c < count; ++c) {
    const float* row = static_cast<const float*>(from.data) + base + (first_column + c) * row_stride;
    for (int d = 0; d < K; ++d) S[d * kColumnStride + c] = row[d];
  }
}

void kda_store_state(const Problem& problem, const Operand& to, int64_t index, int64_t head, int column_block,
                     const float* S) {
  if (!to.data) return;
  const int K = static_cast<int>(problem.K);
  const int first_column = column_block * kColumns;
  const int count = smaller(kColumns, static_cast<int>(problem.V) - first_column);
  const int64_t base = offset_of(to, index, head, 0), row_stride = to.strides[2];
  if (!problem.state_vk) {
    for (int d = 0; d < K; ++d) store_row(to, base + d * row_stride + first_column, count, S + d * kColumnStride);
    return;
  }
  for (int c = 0; c < count; ++c) {
    float* row = static_cast<float*>(to.data) + base + (first_column + c) * row_stride;
    for (int d = 0; d < K; ++d) row[d] = S[d * kColumnStride + c];
  }
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
