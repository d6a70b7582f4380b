#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/decays.cuh"

namespace warpgrad::cuda::sm90 {

// What the pairs inside a block give to the thread's elements: dq, M, N (see KdaPairs) and dG.
struct KdaBlockSums {
  float dq[8] = {}, m[8] = {}, n[8] = {}, dg[8] = {};

  __device__ __forceinline__ void add_to(int block, const float (&beta)[4], KdaKeyGradients& out) const {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (b != block) continue;
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        out.dq[8 * b + x] += dq[x];
        out.dk[8 * b + x] += fmaf(beta[kda_token(x)], n[x], m[x]);
        out.dg[8 * b + x] += dg[x];
      }
    }
  }
};

// The pairs inside a block whose decay can't be divided by: the block is halved, and its halves again. The pairs of a
// row in the second half of a group of 2 `half` rows and one in its first half take the boundary row as their
// reference, so that no factor is above 1. A row belongs to one half only, so one factor a row serves both sides.
//
// The same code for each of a warp's blocks, hence sums of its own: four copies would not stay in the instruction
// cache.
template <class Config>
class KdaSteepBlock {
 public:
  __device__ __forceinline__ KdaSteepBlock(const KdaConsumerThread<Config>& thread, int block)
      : t_(thread), block_(block) {}

  __device__ __forceinline__ void run(KdaKeyGradients& out) {
    float g[8], last[2] = {0, 0};
    KdaGateTile<Config>(t_).load(block_, g);
    KdaGate<Config>(t_).log2_decays(g);
    if (t_.gate_scalars().rows < 64) clear_masked_tokens<Config, 1>(t_, g, block_);
    add_up_tokens<false, 8>(t_.quad(), g, last);
    KdaRawBlockRows raw;
    raw.load(t_, block_);
    raw.apply_norms(rows_);
    KdaBlockSums sums;
    make_fragments(8, g);
    add_pairs_across(sums);
#pragma unroll 1
    for (int half = 4; half >= 1; half /= 2) {
      make_fragments(half, g);
      add_pairs_within(half, sums);
    }
    store_key_sums(sums);
    sums.add_to(block_, rows_.beta, out);
  }

 private:
  __device__ __forceinline__ void store_key_sums(const KdaBlockSums& sums) const {
    float sum_q[4] = {}, sum_m[4] = {}, sum_source[4] = {};
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int token = kda_token(x);
      sum_q[token] = fmaf(rows_.q[x], sums.dq[x], sum_q[token]);
      sum_m[token] = fmaf(rows_.k[x], sums.m[x], sum_m[token]);
      sum_source[token] = fmaf(rows_.k[x], sums.n[x], sum_source[token]);
    }
    t_.template store_key_sums<true>(kKdaSumQ, block_, sum_q);
    t_.template store_key_sums<true>(kKdaSumM, block_, sum_m);
    t_.template store_key_sums<true>(kKdaSumSource, block_, sum_source);
  }

  __device__ __forceinline__ void make_fragments(int half, const float (&g)[8]) {
    make_factors(half, g);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = kda_token(x);
      const float k0 = rows_.k[x] * factor_[x], k1 = rows_.k[x + 1] * factor_[x + 1];
      frag_q_[m] = ptx::cvt_pair<kKdaType>(rows_.q[x] * factor_[x], rows_.q[x + 1] * factor_[x + 1]);
      frag_k_[m] = ptx::cvt_pair<kKdaType>(k0, k1);
      source_[m] = ptx::cvt_pair<kKdaType>(k0 * rows_.beta[i], k1 * rows_.beta[i + 1]);
    }
  }

  // exp(-|G - G_boundary|), the boundary being the last row of the first half of the element's group.
  __device__ __forceinline__ void make_factors(int half, const float (&g)[8]) {
    const int quad = t_.quad();
    // It is row half - 1 of the group: an even row only where groups have two rows.
    const int source = half == 8 ? 3 : half == 4 ? 1 : half == 2 ? quad & 2 : quad;
    float boundary[4];  // [row of 8][key half]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      boundary[i] =
          i >= 2 && half == 8 ? boundary[i - 2] : __shfl_sync(~0u, half == 1 ? g[2 * i] : g[2 * i + 1], source, 4);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) factor_[x] = ptx::ex2_approx(-fabsf(g[x] - boundary[x / 2]));
  }

  // B fragments of the block: of A (0) or B (1).
  __device__ __forceinline__ void load_by_rows(int which, uint32_t (&pair)[4]) const {
    const uint8_t* tile = which ? t_.storage.smem_b.bytes : t_.storage.smem_a.bytes;
    ptx::ldmatrix_x4(t_.score_rows(tile, block_, block_), pair);
  }
  __device__ __forceinline__ void load_by_columns(int which, uint32_t (&pair)[4]) const {
    const uint8_t* tile = which ? t_.storage.smem_b.bytes : t_.storage.smem_a.bytes;
    ptx::ldmatrix_x4_trans(t_.score_columns(tile, block_, block_), pair);
  }

  // Rows 8..15 with columns 0..7. Of a fragment, registers 0 and 1 have tokens 0..7, 2 and 3 the others.
  __device__ __forceinline__ void add_pairs_across(KdaBlockSums& out) {
    uint32_t pair[4];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float sum[4] = {};
      load_by_rows(which, pair);
      ptx::mma_m16n8k8<kKdaType>(sum, source_[0], source_[1], pair[2]);
#pragma unroll
      for (int x = 0; x < 4; ++x) add_to_row(which, x + 4, sum[x], out);
    }
    float sum[4] = {};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint32_t* left = which ? frag_k_ : frag_q_;
      load_by_columns(which, pair);
      ptx::mma_m16n8k8<kKdaType>(sum, left[2], left[3], pair[1]);
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) add_to_column(x, sum[x], out);
  }

  // Rows and columns 0..7, rows and columns 8..15: the pairs that meet at this level.
  __device__ __forceinline__ void add_pairs_within(int half, KdaBlockSums& out) {
    const int group = t_.group(), token = 2 * t_.quad();
    const uint32_t by_rows = mask(meets(half, group, token), meets(half, group, token + 1));
    const uint32_t by_columns = mask(meets(half, token, group), meets(half, token + 1, group));
    uint32_t pair[4];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float sum[8] = {};
      load_by_rows(which, pair);
      multiply_masked(sum, source_, pair, by_rows);
#pragma unroll
      for (int x = 0; x < 8; ++x) add_to_row(which, x, sum[x], out);
    }
    float sum[8] = {};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      load_by_columns(which, pair);
      multiply_masked(sum, which ? frag_k_ : frag_q_, pair, by_columns);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) add_to_column(x, sum[x], out);
  }
  __device__ __forceinline__ static bool meets(int half, int i, int j) {
    return (i & half) && !(j & half) && ((i ^ j) & ~(2 * half - 1)) == 0;
  }
  __device__ __forceinline__ static uint32_t mask(bool low, bool high) {
    return (low ? 0x0000ffffu : 0) | (high ? 0xffff0000u : 0);
  }
  __device__ __forceinline__ static void multiply_masked(float (&sum)[8], const uint32_t (&a)[4],
                                                         const uint32_t (&b)[4], uint32_t mask) {
    ptx::mma_m16n8k8<kKdaType>(sum, a[0], a[1], b[0] & mask);
    ptx::mma_m16n8k8<kKdaType>(sum + 4, a[2], a[3], b[3] & mask);
  }

  // What a sum without the element's own factor gives: dq (0) or M (1) of a later row, N of an earlier one. dG takes
  // the operands as they were rounded.
  __device__ __forceinline__ void add_to_row(int which, int x, float sum, KdaBlockSums& out) {
    float& own = which ? out.m[x] : out.dq[x];
    own = fmaf(factor_[x], sum, own);
    out.dg[x] = fmaf(sum, kda_element(which ? frag_k_ : frag_q_, x), out.dg[x]);
  }
  __device__ __forceinline__ void add_to_column(int x, float sum, KdaBlockSums& out) {
    out.n[x] = fmaf(factor_[x], sum, out.n[x]);
    out.dg[x] = fmaf(-sum, kda_element(source_, x), out.dg[x]);
  }

  const KdaConsumerThread<Config>& t_;
  const int block_;
  KdaBlockRows rows_;
  float factor_[8];
  uint32_t frag_q_[4], frag_k_[4], source_[4];
};

}  // namespace warpgrad::cuda::sm90
