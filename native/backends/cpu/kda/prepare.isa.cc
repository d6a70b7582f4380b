// What a chunk needs from q, k, g and beta alone: decays, Kd, Qd, Kr, N, Aqk and T.

#include "backends/cpu/kda/chunk_units.h"
#include "backends/cpu/kda/gate.h"
#include "backends/cpu/kda/product.h"
#include "backends/cpu/kda/rows.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

using kda::Chunk;
using kda::kBlock;
using kda::kChunk;
using kda::kChunkStride;
using kda::Prepared;
using kda::Problem;

// k / in must not overflow: 2^-80 leaves room for |k| up to 2^47.
constexpr float kSmallestIn = 0x1p-80f;

// x times r = (sum x^2 + 1e-6)^-1/2 if asked for, times scale.
WARPGRAD_INLINE void scale_qk_row(bool norm, float scale, int Kp, float* x) {
  Vec factor = splat(scale);
  if (norm) factor = factor * norm_of_row(Kp, x).inverse;
  for (int d = 0; d < Kp; d += kLanes) store(x + d, load(x + d) * factor);
}

void load_rows(const Problem& problem, const Chunk& chunk, int64_t head, const Prepared& p) {
  const int K = static_cast<int>(problem.K), Kp = problem.Kp, stride = problem.k_stride;
  const int64_t qk_head = head / problem.group;
  load_chunk_rows(problem.q, chunk, qk_head, 0, K, p.q, stride);
  load_chunk_rows(problem.k, chunk, qk_head, 0, K, p.k, stride);
  load_chunk_rows(problem.g, chunk, head, 0, K, p.a, stride);
  const Gate gate = gate_of(problem, head);
  for (int i = 0; i < chunk.rows; ++i) {
    scale_qk_row(problem.qk_l2_norm, problem.scale, Kp, p.q + i * stride);
    if (problem.qk_l2_norm) scale_qk_row(true, 1.0f, Kp, p.k + i * stride);
    gate_row(gate, K, Kp, p.a + i * stride);
  }
  load_tokens(problem.beta, chunk, head, p.beta);
  beta_of(problem, p.beta);
  for (int i = chunk.rows; i < kChunk; ++i) p.beta[i] = 0;
}

// From g (in p.a) the decays of each block, Kd and Qd, and exp(G_C). Decays inside a block are running products of
// exp(g), so their ratios don't suffer from what came before; decays of whole blocks and of the chunk are exponentials
// of sums, so that no error of rounding exp(g) builds up over a long memory. Nothing is ever subtracted: -inf is safe.
void decay_rows(const Problem& problem, int num_blocks, const Prepared& p) {
  const int Kp = problem.Kp, stride = problem.k_stride;
  for (int d = 0; d < Kp; d += kLanes) {
    Vec sum_before{};
    for (int b = 0; b < num_blocks; ++b) {
      const int64_t first = int64_t(b) * kBlock * stride + d;
      const Vec before = exp(sum_before);
      Vec a[kBlock];
      Vec sum{}, in = splat(1.0f);
      for (int i = 0; i < kBlock; ++i) {
        const int64_t at = first + i * stride;
        const Vec g = load(p.a + at);
        sum += g;
        a[i] = exp(g);
        in *= a[i];
        store(p.a + at, a[i]);
        store(p.in + at, in);
        store(p.inv_in + at, in >= kSmallestIn ? 1.0f / in : Vec{});
        const Vec exp_G = in * before;
        store(p.Kd + at, exp_G * load(p.k + at));  // Kd = exp(G) k
        store(p.Qd + at, exp_G * load(p.q + at));  // Qd = scale exp(G) q
      }
      Vec out = splat(1.0f);
      for (int i = kBlock - 1; i >= 0; --i) {
        store(p.out + first + i * stride, out);
        out *= a[i];
      }
      store(p.block + b * Kp + d, exp(sum));
      store(p.before + b * Kp + d, before);
      sum_before += sum;
    }
    store(p.exp_GC + d, exp(sum_before));
  }
}

// Whether a row uses inv_in depends on that row and the ones before it only, so no token changes the bits of an earlier
// one. `in` falls from row to row: the slow rows are the last ones.
void find_slow_rows(const Problem& problem, int num_blocks, const Prepared& p) {
  for (int b = 0; b < num_blocks; ++b) {
    int i = kBlock;
    while (i > 0) {
      IVec slow{};
      const float* in = p.in + (int64_t(b) * kBlock + i - 1) * problem.k_stride;
      for (int d = 0; d < problem.Kp; d += kLanes) slow |= ~(load(in + d) >= kSmallestIn);  // NaN is
      if (!any(slow)) break;
      --i;
    }
    p.first_slow[b] = i;
  }
}

// Row i of the diagonal block by direct decays exp(G_i - G_j), running products from row i down.
void slow_row(const Problem& problem, int block, int row, const Prepared& p) {
  const int stride = problem.k_stride;
  const int64_t first = int64_t(block) * kBlock, i = first + row;
  Vec N_sums[kBlock], Aqk_sums[kBlock];
  for (int j = 0; j <= row; ++j) N_sums[j] = Aqk_sums[j] = Vec{};
  for (int d = 0; d < problem.Kp; d += kLanes) {
    const Vec k_i = load(p.k + i * stride + d), q_i = load(p.q + i * stride + d);
    Vec decay = splat(1.0f);
    for (int j = row; j >= 0; --j) {
      const int64_t at = (first + j) * stride + d;
      const Vec decayed = decay * load(p.k + at);
      N_sums[j] = fma(k_i, decayed, N_sums[j]);
      Aqk_sums[j] = fma(q_i, decayed, Aqk_sums[j]);
      decay *= load(p.a + at);
    }
  }
  for (int j = 0; j <= row; ++j) {
    p.N[i * kChunkStride + first + j] = j < row ? reduce_add(N_sums[j]) : 0.0f;
    p.Aqk[i * kChunkStride + first + j] = reduce_add(Aqk_sums[j]);
  }
}

// N_ij = sum_d k_i k_j exp(G_i - G_j), j < i;  Aqk_ij = scale sum_d q_i k_j exp(G_i - G_j), j <= i; and Kr.
// Block row by block row: with "before" the row before block I,
//   exp(G_i - G_j) = exp(G_i - G_before) exp(G_before - G_j)   for j in an earlier block: both factors at most 1,
//                  = exp(G_i - G_before) / exp(G_j - G_before) for j in the same block, unless the row is slow.
// KrT holds the right factors times k for the block row at hand; after the last one it is moved to the end of the
// chunk.
void score_rows(const Problem& problem, int num_blocks, const Prepared& p) {
  const int Kp = problem.Kp, stride = problem.k_stride;
  float* left = p.scratch;                    // [32, stride]   exp(G_i - G_before) times k_i; q_i
  float* right = left + 2 * kBlock * stride;  // [16, stride]
  float* scores = right + kBlock * stride;    // [32, kChunkStride]
  const auto move_references = [&](int block) {
    const int columns = block * kBlock;
    for (int d = 0; d < Kp; ++d) {
      float* row = p.KrT + d * kChunkStride;
      const Vec decay = splat(p.block[block * Kp + d]);
      for (int j = 0; j < columns; j += kLanes) store(row + j, decay * load(row + j));
    }
    for (int i = 0; i < kBlock; ++i) {
      const int64_t at = int64_t(block * kBlock + i) * stride;
      for (int d = 0; d < Kp; d += kLanes) store(right + i * stride + d, load(p.out + at + d) * load(p.k + at + d));
    }
    transpose_matrix(kBlock, Kp, right, stride, p.KrT + columns, kChunkStride);
  };
  for (int block = 0; block < num_blocks; ++block) {
    if (block > 0) move_references(block - 1);
    const int first = block * kBlock, columns = first + kBlock;
    for (int i = 0; i < kBlock; ++i) {
      const int64_t at = int64_t(first + i) * stride;
      for (int d = 0; d < Kp; d += kLanes) {
        const Vec in = load(p.in + at + d), k_i = load(p.k + at + d);
        store(left + i * stride + d, in * k_i);
        store(left + (kBlock + i) * stride + d, in * load(p.q + at + d));
        store(right + i * stride + d, load(p.inv_in + at + d) * k_i);
      }
    }
    transpose_matrix(kBlock, Kp, right, stride, p.KrT + first, kChunkStride);
    product<Into::kStore>(2 * kBlock, columns, Kp, rows_of(left, stride), p.KrT, kChunkStride, scores, kChunkStride,
                          p.ahead);
    for (int i = 0; i < kBlock; ++i) {
      float* N = p.N + (first + i) * kChunkStride;
      float* Aqk = p.Aqk + (first + i) * kChunkStride;
      const float* N_scores = scores + i * kChunkStride;
      const float* Aqk_scores = scores + (kBlock + i) * kChunkStride;
      for (int j = 0; j < kChunk; j += kLanes) {
        const IVec column = lane_numbers() + j;
        store(N + j, column < first + i ? load(N_scores + j) : Vec{});
        store(Aqk + j, column <= first + i ? load(Aqk_scores + j) : Vec{});
      }
      if (i >= p.first_slow[block]) slow_row(problem, block, i, p);
    }
  }
  move_references(num_blocks - 1);
}

// T = (I + A)^-1 with A = N diag(beta): the 16x16 diagonal blocks by forward substitution, then block row by block row
// T_I,J = -T_II sum_b A_Ib T_bJ.
void invert(int num_blocks, const Prepared& p) {
  constexpr int kVecs = kBlock / kLanes;
  float* A = p.scratch;                     // [64, kChunkStride]
  float* sums = A + kChunk * kChunkStride;  // [16, kChunkStride]
  for (int i = 0; i < num_blocks * kBlock; ++i) {
    for (int j = 0; j < kChunk; j += kLanes) {
      store(A + i * kChunkStride + j, load(p.N + i * kChunkStride + j) * load(p.beta + j));
    }
  }
  zero_rows(0, num_blocks * kBlock, kChunk, p.T, kChunkStride);
  for (int block = 0; block < num_blocks; ++block) {
    const int first = block * kBlock;
    const float* A_block = A + first * kChunkStride + first;
    Vec rows[kBlock][kVecs];
    for (int i = 0; i < kBlock; ++i) {
      for (int v = 0; v < kVecs; ++v) {
        Vec row = lane_numbers() + v * kLanes == i ? splat(1.0f) : Vec{};
        for (int j = 0; j < i; ++j) row = fma(splat(-A_block[i * kChunkStride + j]), rows[j][v], row);
        rows[i][v] = row;
        store(p.T + (first + i) * kChunkStride + first + v * kLanes, row);
      }
    }
  }
  for (int block = 1; block < num_blocks; ++block) {
    const int first = block * kBlock;
    float* T_row = p.T + first * kChunkStride;
    product<Into::kStore>(kBlock, first, first, rows_of(A + first * kChunkStride, kChunkStride), p.T, kChunkStride,
                          sums, kChunkStride, p.ahead);
    lower_product<Into::kSubtract>(kBlock, first, T_row + first, kChunkStride, sums, T_row, kChunkStride, p.ahead);
  }
}

}  // namespace

void kda_prepare(const Problem& problem, const Chunk& chunk, int64_t head, const float* kept_T, const Prepared& p) {
  const int num_blocks = kda::padded(chunk.rows) / kBlock;
  load_rows(problem, chunk, head, p);
  decay_rows(problem, num_blocks, p);
  find_slow_rows(problem, num_blocks, p);
  score_rows(problem, num_blocks, p);
  if (!kept_T) {
    invert(num_blocks, p);
    return;
  }
  for (int i = 0; i < num_blocks * kBlock; ++i) {
    for (int j = 0; j < kChunk; j += kLanes) store(p.T + i * kChunkStride + j, load(kept_T + i * kChunk + j));
  }
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
