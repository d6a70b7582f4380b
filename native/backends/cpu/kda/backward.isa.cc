// One chunk of the backward recurrence for one block of value columns, and the end of dq and dk.

#include "backends/cpu/kda/chunk_units.h"
#include "backends/cpu/kda/product.h"
#include "backends/cpu/kda/rows.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

using kda::Chunk;
using kda::ChunkAdjoint;
using kda::kBlock;
using kda::kChunkStride;
using kda::kColumns;
using kda::kColumnStride;
using kda::Operand;
using kda::Prepared;
using kda::Problem;

void kda_backward_rows(const Problem& problem, const Chunk& chunk, int64_t head, int column_block, const Prepared& p,
                       const ChunkAdjoint& adjoint) {
  const int first_column = column_block * kColumns;
  const int count = smaller(kColumns, static_cast<int>(problem.V) - first_column);
  const int columns = kda::padded(count), rows = kda::padded(chunk.rows), stride = problem.v_stride;
  const float* dS = adjoint.dS + int64_t(column_block) * problem.Kp * kColumnStride;
  const float* d_out = adjoint.d_out + first_column;
  float* dU = adjoint.dU + first_column;
  float* dR = adjoint.dR + first_column;
  float* dE = p.scratch;  // [64, kColumnStride]

  // dU = Aqk^T do + Kr dS
  product<Into::kStore>(rows, columns, problem.Kp, columns_of(p.KrT, kChunkStride), dS, kColumnStride, dU, stride,
                        p.ahead);
  for (int j = 0; j < rows; j += kBlock) {
    product<Into::kAdd>(kBlock, columns, rows - j, columns_of(p.Aqk + j * kChunkStride + j, kChunkStride),
                        d_out + j * stride, stride, dU + j * stride, stride, p.ahead);
  }
  // dE = beta dU, dv = dR = T^T dE
  for (int i = 0; i < rows; ++i) {
    const Vec beta = splat(p.beta[i]);
    for (int c = 0; c < columns; c += kLanes) store(dE + i * kColumnStride + c, beta * load(dU + i * stride + c));
  }
  for (int j = 0; j < rows; j += kBlock) {
    product<Into::kStore>(kBlock, columns, rows - j, columns_of(p.T + j * kChunkStride + j, kChunkStride),
                          dE + j * kColumnStride, kColumnStride, dR + j * stride, stride, p.ahead);
  }
  store_chunk_rows(problem.dv, chunk, head, first_column, count, dR, stride);
}

void kda_backward_state(const Problem& problem, const Chunk& chunk, int column_block, const Prepared& p,
                        const ChunkAdjoint& adjoint) {
  const int first_column = column_block * kColumns;
  const int columns = kda::padded(smaller(kColumns, static_cast<int>(problem.V) - first_column));
  const int rows = kda::padded(chunk.rows), Kp = problem.Kp;
  float* dS = adjoint.dS + int64_t(column_block) * Kp * kColumnStride;
  // dS = exp(G_C) dS + Qd^T do - Kd^T dR
  scale_rows(Kp, columns, p.exp_GC, dS, dS, kColumnStride);
  product<Into::kAdd>(Kp, columns, rows, columns_of(p.Qd, problem.k_stride), adjoint.d_out + first_column,
                      problem.v_stride, dS, kColumnStride, p.ahead);
  product<Into::kSubtract>(Kp, columns, rows, columns_of(p.Kd, problem.k_stride), adjoint.dR + first_column,
                           problem.v_stride, dS, kColumnStride, p.ahead);
}

namespace {

// dx = r (dy - y (y dy)) with y = x r; in place, x the raw row. In double precision: with few dimensions dy is nearly
// parallel to y (with one, it is) and the difference cancels.
void short_norm_backward(int K, const float* x, float* dy) {
  double squares = kda::kNormEpsilon, products = 0;
  for (int d = 0; d < K; ++d) {
    squares += double(x[d]) * x[d];
    products += double(x[d]) * dy[d];
  }
  const double r = 1 / __builtin_sqrt(squares);
  for (int d = 0; d < K; ++d) dy[d] = static_cast<float>(r * (dy[d] - x[d] * (products / squares)));
}

constexpr int kShortRow = 8;

void norm_backward(int K, int Kp, float* x, float* dy) {
  if (K <= kShortRow) {
    short_norm_backward(K, x, dy);
    return;
  }
  const auto [shrink, inverse] = norm_of_row(Kp, x);
  Vec products{};
  for (int d = 0; d < Kp; d += kLanes) products = fma(load(x + d), load(dy + d), products);
  const Vec r = inverse * shrink, y_dy = splat(reduce_add(products)) * inverse;
  for (int d = 0; d < Kp; d += kLanes) store(dy + d, r * (load(dy + d) - load(x + d) * inverse * y_dy));
}

}  // namespace

void kda_store_qk_gradients(const Problem& problem, const Chunk& chunk, int64_t qk_head, float* dq, float* dk) {
  const int K = static_cast<int>(problem.K), Kp = problem.Kp, stride = problem.k_stride;
  float x[ops::kMaxKdaDim];
  for (int i = 0; i < chunk.rows; ++i) {
    float* dq_row = dq + i * stride;
    float* dk_row = dk + i * stride;
    for (int d = 0; d < Kp; d += kLanes) store(dq_row + d, problem.scale * load(dq_row + d));
    if (problem.qk_l2_norm) {
      load_row(problem.q, offset_of(problem.q, chunk.batch, chunk.token + i, qk_head), K, x);
      norm_backward(K, Kp, x, dq_row);
      load_row(problem.k, offset_of(problem.k, chunk.batch, chunk.token + i, qk_head), K, x);
      norm_backward(K, Kp, x, dk_row);
    }
    store_row(problem.dq, offset_of(problem.dq, chunk.batch, chunk.token + i, qk_head), K, dq_row);
    store_row(problem.dk, offset_of(problem.dk, chunk.batch, chunk.token + i, qk_head), K, dk_row);
  }
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
