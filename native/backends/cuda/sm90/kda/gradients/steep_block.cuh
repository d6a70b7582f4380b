#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/decays.cuh"

namespace warpgrad::cuda::sm90 {

// The pairs inside a block whose decay can't be divided by: the block is halved, and its halves again. The pairs of a row
// in the second half of a group of 2 `half` rows and one in its first half take the boundary row as their reference, so
// that no factor is above 1. A row belongs to one half only, so one factor a row serves both sides.
template <class Config>
class KdaSteepBlock {
 public:
  __device__ __forceinline__ KdaSteepBlock(const KdaConsumerThread<Config>& thread, int block)
      : t_(thread), block_(block) {}

  __device__ __forceinline__ void run(KdaKeyGradients& out) {
    KdaRawBlockRows raw;
    raw.load(t_, block_);
    float g[8], last[2] = {0, 0};
    load_log2_decays(t_, block_, g);
    if (t_.gate_scalars().rows < 64) clear_masked_tokens<Config, 1>(t_, g, block_);
    add_up_tokens<false>(t_.quad(), g, last);
    raw.apply_norms(rows_);

    make_fragments(8, g);
    add_up_pairs_across();
#pragma unroll
    for (int x = 0; x < 4; ++x) add_first_row(x, out);
#pragma unroll
    for (int x = 4; x < 8; ++x) add_second_row(x, out);
#pragma unroll 1
    for (int half = 4; half >= 1; half /= 2) {
      make_fragments(half, g);
      add_up_pairs_within(half);
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        add_first_row(x, out);
        add_second_row(x, out);
      }
    }
    t_.template store_key_sums<true>(kKdaSumBeta, block_, sum_beta_);
    t_.template store_key_sums<true>(kKdaSumQ, block_, sum_q_);
    t_.template store_key_sums<true>(kKdaSumK, block_, sum_k_);
  }

 private:
  __device__ __forceinline__ void make_fragments(int half, const float (&g)[8]) {
    make_factors(half, g);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = kda_token(x);
      const float k0 = rows_.k[x] * factor_[x], k1 = rows_.k[x + 1] * factor_[x + 1];
      frag_q_[m] = ptx::cvt_pair<kKdaType>(rows_.q[x] * factor_[x], rows_.q[x + 1] * factor_[x + 1]);
      frag_k_[m] = ptx::cvt_pair<kKdaType>(k0, k1);
      frag_beta_k_[m] = ptx::cvt_pair<kKdaType>(k0 * rows_.beta[i], k1 * rows_.beta[i + 1]);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) q_[x] = m_[x] = k_[x] = 0;
  }

  // exp(-|G - G_boundary|), the boundary being the last row of the first half of the element's group.
  __device__ __forceinline__ void make_factors(int half, const float (&g)[8]) {
    const int quad = t_.quad();
    // It is row half - 1 of the group: an even row only where groups have two rows.
    const int source = half == 8 ? 3 : half == 4 ? 1 : half == 2 ? quad & 2 : quad;
    float boundary[4];  // [row of 8][key half]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      boundary[i] = i >= 2 && half == 8 ? boundary[i - 2]
                                        : __shfl_sync(~0u, half == 1 ? g[2 * i] : g[2 * i + 1], source, 4);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) factor_[x] = ptx::ex2_approx(-fabsf(g[x] - boundary[x / 2]));
  }

  // Rows 8..15 with columns 0..7. Of a fragment, registers 0 and 1 have tokens 0..7, 2 and 3 the others.
  __device__ __forceinline__ void add_up_pairs_across() {
    uint32_t pair[4];
    ptx::ldmatrix_x4(t_.score_rows(t_.storage.smem_d_aqk.bytes, block_, block_), pair);
    ptx::mma_m16n8k8<kKdaType>(q_ + 4, frag_k_[0], frag_k_[1], pair[2]);
    ptx::ldmatrix_x4(t_.score_rows(t_.storage.smem_da.bytes, block_, block_), pair);
    ptx::mma_m16n8k8<kKdaType>(m_ + 4, frag_k_[0], frag_k_[1], pair[2]);
    ptx::ldmatrix_x4_trans(t_.score_columns(t_.storage.smem_d_aqk.bytes, block_, block_), pair);
    ptx::mma_m16n8k8<kKdaType>(k_, frag_q_[2], frag_q_[3], pair[1]);
    ptx::ldmatrix_x4_trans(t_.score_columns(t_.storage.smem_da.bytes, block_, block_), pair);
    ptx::mma_m16n8k8<kKdaType>(k_, frag_beta_k_[2], frag_beta_k_[3], pair[1]);
  }

  // Rows and columns 0..7, rows and columns 8..15: the pairs that meet at this level.
  __device__ __forceinline__ void add_up_pairs_within(int half) {
    const int group = t_.group(), token = 2 * t_.quad();
    const uint32_t by_rows = mask(meets(half, group, token), meets(half, group, token + 1));
    const uint32_t by_columns = mask(meets(half, token, group), meets(half, token + 1, group));
    uint32_t pair[4];
    ptx::ldmatrix_x4(t_.score_rows(t_.storage.smem_d_aqk.bytes, block_, block_), pair);
    multiply_masked(q_, frag_k_, pair, by_rows);
    ptx::ldmatrix_x4(t_.score_rows(t_.storage.smem_da.bytes, block_, block_), pair);
    multiply_masked(m_, frag_k_, pair, by_rows);
    ptx::ldmatrix_x4_trans(t_.score_columns(t_.storage.smem_d_aqk.bytes, block_, block_), pair);
    multiply_masked(k_, frag_q_, pair, by_columns);
    ptx::ldmatrix_x4_trans(t_.score_columns(t_.storage.smem_da.bytes, block_, block_), pair);
    multiply_masked(k_, frag_beta_k_, pair, by_columns);
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

  // An element's gradients as the earlier and as the later row of its pairs; dG with the operands as they were rounded.
  __device__ __forceinline__ void add_first_row(int x, KdaKeyGradients& out) {
    const int i = 8 * block_ + x, token = kda_token(x);
    const float dk = factor_[x] * k_[x];
    out.dk[i] += dk;
    out.dg[i] = fmaf(-k_[x], kda_element(frag_k_, x), out.dg[i]);
    sum_k_[token] = fmaf(rows_.k[x], dk, sum_k_[token]);
  }
  __device__ __forceinline__ void add_second_row(int x, KdaKeyGradients& out) {
    const int i = 8 * block_ + x, token = kda_token(x);
    const float dq = factor_[x] * q_[x], m = factor_[x] * m_[x], dk = rows_.beta[token] * m;
    out.dq[i] += dq;
    out.dk[i] += dk;
    out.dg[i] = fmaf(q_[x], kda_element(frag_q_, x), fmaf(m_[x], kda_element(frag_beta_k_, x), out.dg[i]));
    sum_beta_[token] = fmaf(rows_.k[x], m, sum_beta_[token]);
    sum_q_[token] = fmaf(rows_.q[x], dq, sum_q_[token]);
    sum_k_[token] = fmaf(rows_.k[x], dk, sum_k_[token]);
  }

  const KdaConsumerThread<Config>& t_;
  const int block_;
  KdaBlockRows rows_;
  float factor_[8];
  uint32_t frag_q_[4], frag_k_[4], frag_beta_k_[4];
  float q_[8], m_[8], k_[8];  // of one level: sums for dq, M and dk-, without the element's own factor
  float sum_beta_[4] = {}, sum_q_[4] = {}, sum_k_[4] = {};
};

}  // namespace warpgrad::cuda::sm90
