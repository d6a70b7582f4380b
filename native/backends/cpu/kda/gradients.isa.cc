// The gradients of one chunk of one value head, once the adjoints dU, dR and dS are known.

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
using kda::kChunkStride;
using kda::kColumns;
using kda::kColumnStride;
using kda::Kept;
using kda::kNumBlocks;
using kda::Operand;
using kda::Prepared;
using kda::Problem;

// Views of the scratch memory, gradients_scratch_elems floats. Parts that are not needed at the same time share memory,
// so that a chunk's backward fits in the second-level cache for K = V = 128.
struct Scratch {
  // Until pair_gradients.
  float* state_T;  // [Vp, k_stride]      transpose of S, then of dS
  float* E;        // [64, v_stride]
  float* ET;       // [Vp, kChunkStride]  first some rows of S
  // From pair_gradients on, in their place.
  float* dq;       // [64, k_stride]      parts of dq and dk+ from pairs i != j inside the chunk
  float* dk_plus;  // [64, k_stride]
  float* right;    // [64, k_stride]      see pair_gradients; then sums for dg
  float* left;     // [32, k_stride]
  float* sums;     // [32, k_stride]
  // Always.
  float* dQd;            // [64, k_stride]
  float* dKd;            // [64, k_stride]
  float* dKr;            // [64, k_stride]
  float* dk_minus;       // [64, k_stride]
  float* dA;             // [4][32, kChunkStride]  of each block row: 16 rows of dAqk, 16 of dN; strictly lower
  float* slow;           // [4][32, 16]            what belongs to slow rows in the diagonal blocks of dA
  float* decayed;        // [Kp]   exp(G_C) rowsum(S dS)
  float* d_bias;         // [Kp]
  float* dAqk_diagonal;  // [64]
  float* dbeta;          // [64]
};

Scratch scratch_views(const Problem& problem, float* memory) {
  const int64_t ks = problem.k_stride, vs = problem.v_stride, Vp = problem.Vp;
  const auto take = [&](int64_t count, int64_t other_count) {
    float* part = memory;
    memory += count > other_count ? count : other_count;
    return part;
  };
  Scratch s;
  s.state_T = s.dq = take(Vp * ks, 2 * kChunk * ks);
  s.dk_plus = s.dq + kChunk * ks;
  s.E = s.right = take(kChunk * vs, kChunk * ks);
  s.ET = s.left = take(Vp * kChunkStride, 4 * kBlock * ks);
  s.sums = s.left + 2 * kBlock * ks;
  s.dQd = take(kChunk * ks, 0);
  s.dKd = take(kChunk * ks, 0);
  s.dKr = take(kChunk * ks, 0);
  s.dk_minus = take(kChunk * ks, 0);
  s.dA = take(kNumBlocks * 2 * kBlock * kChunkStride, 0);
  s.slow = take(kNumBlocks * 2 * kBlock * kBlock, 0);
  s.decayed = take(problem.Kp, 0);
  s.d_bias = take(problem.Kp, 0);
  s.dAqk_diagonal = take(kChunk, 0);
  s.dbeta = take(kChunk, 0);
  return s;
}

// dQd = do S^T, dKd = -dR S^T, dKr = U dS^T, and exp(G_C) rowsum(S dS).
void state_gradients(const Problem& problem, int rows, const Prepared& p, const Kept& kept, const ChunkAdjoint& adjoint,
                     const Scratch& s) {
  const int K = static_cast<int>(problem.K), V = static_cast<int>(problem.V), Kp = problem.Kp, Vp = problem.Vp;
  const int ks = problem.k_stride, vs = problem.v_stride;
  const Operand from{kept.S, DType::kFloat32, {}};
  float* S_rows = s.ET;  // [16, v_stride]
  for (int d = 0; d < Kp; d += kBlock) {
    for (int r = 0; r < kBlock; ++r) {
      if (d + r >= K) zero_rows(r, r + 1, Vp, S_rows, vs);
      if (d + r < K) load_row(from, int64_t(d + r) * V, V, S_rows + r * vs);
      Vec sum{};
      for (int c = 0; c < Vp; c += kLanes) {
        const int64_t block = c / kColumns * int64_t(Kp);
        const float* dS = adjoint.dS + (block + d + r) * kColumnStride + c % kColumns;
        sum = fma(load(S_rows + r * vs + c), load(dS), sum);
      }
      s.decayed[d + r] = p.exp_GC[d + r] * reduce_add(sum);
    }
    transpose_matrix(kBlock, Vp, S_rows, vs, s.state_T + d, ks);
  }
  product<Into::kStore>(rows, Kp, Vp, rows_of(adjoint.d_out, vs), s.state_T, ks, s.dQd, ks, p.ahead);
  zero_rows(0, rows, Kp, s.dKd, ks);
  product<Into::kSubtract>(rows, Kp, Vp, rows_of(adjoint.dR, vs), s.state_T, ks, s.dKd, ks, p.ahead);
  for (int first = 0; first < Vp; first += kColumns) {
    transpose_matrix(Kp, smaller(kColumns, Vp - first), adjoint.dS + int64_t(first) / kColumns * Kp * kColumnStride,
                     kColumnStride, s.state_T + int64_t(first) * ks, ks);
  }
  product<Into::kStore>(rows, Kp, Vp, rows_of(s.E, vs), s.state_T, ks, s.dKr, ks, p.ahead);
  scale_rows(rows, Kp, p.beta, s.dKr, s.dKr, ks);  // U = beta E
}

// dAqk = tril(do U^T), dN = -strict_tril(dR U^T), and
// dbeta = rowsum(dU E) + colsum(dA N), A = N diag(beta), dA = -strict_tril(dR E^T).
void score_gradients(const Problem& problem, int num_blocks, const Prepared& p, const ChunkAdjoint& adjoint,
                     const Scratch& s) {
  const int Vp = problem.Vp, vs = problem.v_stride;
  transpose_matrix(num_blocks * kBlock, Vp, s.E, vs, s.ET, kChunkStride);
  Vec dbeta[kChunk / kLanes] = {};
  for (int block = 0; block < num_blocks; ++block) {
    const int first = block * kBlock;
    float* dAqk = s.dA + block * 2 * kBlock * kChunkStride;
    float* dN = dAqk + kBlock * kChunkStride;
    product<Into::kStore>(kBlock, first + kBlock, Vp, rows_of(adjoint.d_out + first * vs, vs), s.ET, kChunkStride, dAqk,
                          kChunkStride, p.ahead);
    product<Into::kStore>(kBlock, first + kBlock, Vp, rows_of(adjoint.dR + first * vs, vs), s.ET, kChunkStride, dN,
                          kChunkStride, p.ahead);
    for (int i = 0; i < kBlock; ++i) {
      s.dAqk_diagonal[first + i] = p.beta[first + i] * dAqk[i * kChunkStride + first + i];
      for (int j = 0; j < first + kBlock; j += kLanes) {
        const int64_t at = i * kChunkStride + j;
        const IVec lower = lane_numbers() + j < first + i;
        const Vec beta = load(p.beta + j);
        const Vec dA = lower ? -load(dN + at) : Vec{};
        dbeta[j / kLanes] = fma(dA, load(p.N + first * kChunkStride + at), dbeta[j / kLanes]);
        store(dN + at, beta * dA);
        store(dAqk + at, lower ? beta * load(dAqk + at) : Vec{});
      }
      if (i < p.first_slow[block]) continue;
      for (int half = 0; half < 2; ++half) {
        const int row = half * kBlock + i;
        float* diagonal = dAqk + row * kChunkStride + first;
        float* moved = s.slow + (block * 2 * kBlock + row) * kBlock;
        for (int j = 0; j < kBlock; j += kLanes) {
          store(moved + j, load(diagonal + j));
          store(diagonal + j, Vec{});
        }
      }
    }
  }
  for (int j = 0; j < kChunk; j += kLanes) store(s.dbeta + j, dbeta[j / kLanes]);
  for (int i = 0; i < num_blocks * kBlock; ++i) {
    Vec sum{};
    for (int c = 0; c < Vp; c += kLanes) sum = fma(load(adjoint.dU + i * vs + c), load(s.E + i * vs + c), sum);
    s.dbeta[i] += reduce_add(sum);
  }
}

// The pairs of a slow row with the rows before it in its block, by direct decays.
void slow_pair_gradients(const Problem& problem, int block, int row, const Prepared& p, const Scratch& s) {
  const int ks = problem.k_stride;
  const int64_t first = int64_t(block) * kBlock, i = first + row;
  const float* dAqk = s.slow + (block * 2 * kBlock + row) * kBlock;
  const float* dN = dAqk + kBlock * kBlock;
  for (int d = 0; d < problem.Kp; d += kLanes) {
    const Vec q_i = load(p.q + i * ks + d), k_i = load(p.k + i * ks + d);
    Vec dq = load(s.dq + i * ks + d), dk_plus = load(s.dk_plus + i * ks + d);
    Vec decay = splat(1.0f);
    for (int j = row - 1; j >= 0; --j) {
      const int64_t at = (first + j) * ks + d;
      decay *= load(p.a + at + ks);
      const Vec decayed = decay * load(p.k + at);
      dq = fma(splat(dAqk[j]), decayed, dq);
      dk_plus = fma(splat(dN[j]), decayed, dk_plus);
      store(s.dk_minus + at, fma(decay, fma(splat(dAqk[j]), q_i, splat(dN[j]) * k_i), load(s.dk_minus + at)));
    }
    store(s.dq + i * ks + d, dq);
    store(s.dk_plus + i * ks + d, dk_plus);
  }
}

// dq_i  = sum_j dAqk_ij k_j exp(G_i - G_j)      dk+_i = sum_j dN_ij k_j exp(G_i - G_j)          over j < i
// dk-_j = sum_i (dAqk_ij q_i + dN_ij k_i) exp(G_i - G_j)                                       over i > j
// with the exponentials split as in score_rows (prepare.isa.cc): `left` is exp(G_i - G_before) times q_i and k_i,
// `right` is exp(G_before - G_j) k_j for the block row at hand, and dk- is kept relative to the end of the rows done.
void pair_gradients(const Problem& problem, int num_blocks, const Prepared& p, const Scratch& s) {
  const int Kp = problem.Kp, ks = problem.k_stride;
  for (int block = 0; block < num_blocks; ++block) {
    const int first = block * kBlock;
    for (int j = 0; j < first + kBlock; ++j) {
      const float* decay = p.block + (block - 1) * Kp;
      for (int d = 0; d < Kp; d += kLanes) {
        const int64_t at = int64_t(j) * ks + d;
        Vec k_j = j < first - kBlock ? load(s.right + at) * load(decay + d) : load(p.k + at);
        if (j >= first - kBlock) k_j *= load((j < first ? p.out : p.inv_in) + at);
        store(s.right + at, k_j);
      }
    }
    product<Into::kStore>(2 * kBlock, Kp, first + kBlock,
                          rows_of(s.dA + block * 2 * kBlock * kChunkStride, kChunkStride), s.right, ks, s.sums, ks,
                          p.ahead);
    for (int i = 0; i < kBlock; ++i) {
      for (int d = 0; d < Kp; d += kLanes) {
        const int64_t at = int64_t(first + i) * ks + d;
        const Vec in = load(p.in + at);
        store(s.dq + at, in * load(s.sums + i * ks + d));
        store(s.dk_plus + at, in * load(s.sums + (kBlock + i) * ks + d));
      }
    }
  }
  zero_rows(0, num_blocks * kBlock, Kp, s.dk_minus, ks);
  for (int block = num_blocks - 1; block >= 0; --block) {
    const int first = block * kBlock;
    for (int j = 0; j < first; ++j) {
      for (int d = 0; d < Kp; d += kLanes) {
        const int64_t at = int64_t(j) * ks + d;
        store(s.dk_minus + at, load(p.block + block * Kp + d) * load(s.dk_minus + at));
      }
    }
    for (int i = 0; i < kBlock; ++i) {
      for (int d = 0; d < Kp; d += kLanes) {
        const int64_t at = int64_t(first + i) * ks + d;
        const Vec in = load(p.in + at);
        store(s.left + i * ks + d, in * load(p.q + at));
        store(s.left + (kBlock + i) * ks + d, in * load(p.k + at));
      }
    }
    const float* dA = s.dA + block * 2 * kBlock * kChunkStride;
    product<Into::kAdd>(first, Kp, 2 * kBlock, columns_of(dA, kChunkStride), s.left, ks, s.dk_minus, ks, p.ahead);
    product<Into::kStore>(kBlock, Kp, 2 * kBlock, columns_of(dA + first, kChunkStride), s.left, ks, s.sums, ks,
                          p.ahead);
    for (int j = 0; j < kBlock; ++j) {
      for (int d = 0; d < Kp; d += kLanes) {
        const int64_t at = int64_t(first + j) * ks + d;
        store(s.dk_minus + at,
              fma(load(p.inv_in + at), load(s.sums + j * ks + d), load(p.out + at) * load(s.dk_minus + at)));
      }
    }
    for (int i = p.first_slow[block]; i < kBlock; ++i) slow_pair_gradients(problem, block, i, p, s);
  }
}

// Sums up dq and dk, and dg (into s.dq):
//   dg_t = sum_{i >= t} (dQd_i Qd_i + dKd_i Kd_i) + sum_{i < t} dKr_i Kr_i + exp(G_C) rowsum(S dS)
//        + sum_{i >= t} (dq_i q_i + (dk+_i - dk-_i) k_i)      pairs i != j inside the chunk only
// which is the reverse cumulative sum of dG without the terms that cancel: what exp(G_C - G_i) passes on after t.
void finish_gradients(const Problem& problem, const Chunk& chunk, int num_blocks, const Prepared& p, const Scratch& s,
                      float* dq, float* dk) {
  const int Kp = problem.Kp, ks = problem.k_stride;
  for (int d = 0; d < Kp; d += kLanes) {
    Vec after = splat(1.0f);  // exp(G_C - G_end) of the block
    for (int b = num_blocks - 1; b >= 0; --b) {
      for (int i = kBlock - 1; i >= 0; --i) {
        const int64_t at = int64_t(b * kBlock + i) * ks + d;
        const Vec decay = after * load(p.out + at);  // exp(G_C - G_i)
        const Vec decayed = decay * load(s.dKr + at);
        store(s.dKr + at, decayed);
        store(s.right + at, decayed * load(p.k + at));
      }
      after *= load(p.block + b * Kp + d);
    }
    Vec sum = load(s.decayed + d);
    for (int i = 0; i < chunk.rows; ++i) {
      const Vec term = load(s.right + int64_t(i) * ks + d);
      store(s.right + int64_t(i) * ks + d, sum);
      sum += term;
    }
    Vec inter{}, pairs{};
    for (int i = chunk.rows - 1; i >= 0; --i) {
      const int64_t at = int64_t(i) * ks + d;
      const Vec exp_G = load(p.in + at) * load(p.before + i / kBlock * Kp + d);
      const Vec q_i = load(p.q + at), k_i = load(p.k + at), diagonal = splat(s.dAqk_diagonal[i]);
      const Vec dq_state = exp_G * load(s.dQd + at), dk_state = exp_G * load(s.dKd + at);
      const Vec dq_pairs = load(s.dq + at), dk_plus = load(s.dk_plus + at), dk_minus = load(s.dk_minus + at);
      store(dq + at, load(dq + at) + (dq_state + fma(diagonal, k_i, dq_pairs)));
      store(dk + at, load(dk + at) + (dk_state + load(s.dKr + at) + fma(diagonal, q_i, dk_plus + dk_minus)));
      inter += fma(dq_state, q_i, dk_state * k_i);
      pairs += fma(dq_pairs, q_i, (dk_plus - dk_minus) * k_i);
      // Where exp(g) is 0, nothing passes, and what is left here is rounding.
      const Vec dg = load(s.right + at) + inter + pairs;
      store(s.dq + at, load(p.a + at) == 0.0f ? Vec{} : dg);
    }
  }
}

}  // namespace

void kda_gradients(const Problem& problem, const Chunk& chunk, int64_t head, const Prepared& p, const Kept& kept,
                   const ChunkAdjoint& adjoint, float* dq, float* dk, float* partial, float* scratch) {
  const int V = static_cast<int>(problem.V);
  const int rows = kda::padded(chunk.rows), num_blocks = rows / kBlock;
  const Scratch s = scratch_views(problem, scratch);
  const Operand kept_E{kept.E, DType::kFloat32, {}};
  for (int i = 0; i < rows; ++i) load_row(kept_E, int64_t(i) * V, V, s.E + i * problem.v_stride);

  state_gradients(problem, rows, p, kept, adjoint, s);
  score_gradients(problem, num_blocks, p, adjoint, s);
  pair_gradients(problem, num_blocks, p, s);
  finish_gradients(problem, chunk, num_blocks, p, s, dq, dk);

  store_gate_gradients(problem, chunk, head, s.dq, s.dbeta, s.d_bias, partial);
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
