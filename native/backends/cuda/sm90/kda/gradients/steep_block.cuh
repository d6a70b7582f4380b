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

  __device__ __forceinline__ void run(KdaKeyGradients& out) const {
    float g[8];
    load_log2_decays(t_, block_, g);
    if (t_.gate_scalars().rows < 64) clear_masked_tokens<Config, 1>(t_, g, block_);
    float last[2] = {0, 0};
    add_up_tokens<false>(t_.quad(), g, last);
    float sum_beta[4] = {}, sum_q[4] = {}, sum_k[4] = {};
#pragma unroll 1
    for (int half = 8; half >= 1; half /= 2) {
      KdaBlockRows rows;
      float factor[8];
      load_block_rows(t_, block_, rows);
      boundary_factors(half, g, factor);
      Level level;
      add_up_pairs(half, rows, factor, level);
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int i = 8 * block_ + x, token = kda_token(x);
        const float dq = factor[x] * level.q[x], m = factor[x] * level.m[x];
        const float dk = rows.beta[token] * m + factor[x] * level.k[x];
        out.dq[i] += dq;
        out.dk[i] += dk;
        out.dg[i] += level.q[x] * kda_element(level.frag_q, x) + level.m[x] * kda_element(level.frag_beta_k, x) -
                     level.k[x] * kda_element(level.frag_k, x);
        sum_beta[token] += rows.k[x] * m;
        sum_q[token] += rows.q[x] * dq;
        sum_k[token] += rows.k[x] * dk;
      }
    }
    t_.template store_key_sums<true>(kKdaSumBeta, block_, sum_beta);
    t_.template store_key_sums<true>(kKdaSumQ, block_, sum_q);
    t_.template store_key_sums<true>(kKdaSumK, block_, sum_k);
  }

 private:
  struct Level {
    uint32_t frag_q[4], frag_k[4], frag_beta_k[4];
    float q[8], m[8], k[8];  // sums for dq, M and dk-, without the element's own factor
  };

  __device__ __forceinline__ void add_up_pairs(int half, const KdaBlockRows& rows, const float (&factor)[8],
                                               Level& level) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = kda_token(x);
      const float k0 = rows.k[x] * factor[x], k1 = rows.k[x + 1] * factor[x + 1];
      level.frag_q[m] = ptx::cvt_pair<kKdaType>(rows.q[x] * factor[x], rows.q[x + 1] * factor[x + 1]);
      level.frag_k[m] = ptx::cvt_pair<kKdaType>(k0, k1);
      level.frag_beta_k[m] = ptx::cvt_pair<kKdaType>(k0 * rows.beta[i], k1 * rows.beta[i + 1]);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) level.q[x] = level.m[x] = level.k[x] = 0;
    uint32_t pair[4];
    load_by_rows(t_.storage.smem_d_aqk.bytes, half, pair);
    multiply_block(level.q, level.frag_k, pair);
    load_by_rows(t_.storage.smem_da.bytes, half, pair);
    multiply_block(level.m, level.frag_k, pair);
    load_by_columns(t_.storage.smem_d_aqk.bytes, half, pair);
    multiply_block(level.k, level.frag_q, pair);
    load_by_columns(t_.storage.smem_da.bytes, half, pair);
    multiply_block(level.k, level.frag_beta_k, pair);
  }

  // exp(-|G - G_boundary|), the boundary being the last row of the first half of the element's group.
  __device__ __forceinline__ void boundary_factors(int half, const float (&g)[8], float (&factor)[8]) const {
    const int quad = t_.quad();
    // The boundary is row half - 1 of the group: an even row only where groups have two rows.
    const int source = half == 8 ? 3 : half == 4 ? 1 : half == 2 ? quad & 2 : quad;
#pragma unroll
    for (int key_half = 0; key_half < 2; ++key_half) {
      float boundary[2];
#pragma unroll
      for (int row8 = 0; row8 < 2; ++row8) {
        const int x = 4 * row8 + 2 * key_half;
        boundary[row8] = __shfl_sync(~0u, half == 1 ? g[x] : g[x + 1], source, 4);
      }
      if (half == 8) boundary[1] = boundary[0];
#pragma unroll
      for (int row8 = 0; row8 < 2; ++row8) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = 4 * row8 + 2 * key_half + e;
          factor[x] = ptx::ex2_approx(-fabsf(g[x] - boundary[row8]));
        }
      }
    }
  }

  // Whether row i and column j of the block meet at this level.
  __device__ __forceinline__ static bool meets(int half, int i, int j) {
    return (i & half) && !(j & half) && ((i ^ j) & ~(2 * half - 1)) == 0;
  }
  __device__ __forceinline__ static uint32_t mask(uint32_t pair, bool low, bool high) {
    return pair & ((low ? 0x0000ffffu : 0) | (high ? 0xffff0000u : 0));
  }

  // B fragments of the diagonal block, with what is not of this level zero. By rows: sums over j for row i.
  __device__ __forceinline__ void load_by_rows(const uint8_t* tile, int half, uint32_t (&pair)[4]) const {
    ptx::ldmatrix_x4(t_.score_rows(tile, block_, block_), pair);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int i = 8 * (r >> 1) + t_.group(), j = 8 * (r & 1) + 2 * t_.quad();
      pair[r] = mask(pair[r], meets(half, i, j), meets(half, i, j + 1));
    }
  }
  // By columns: sums over i for column j.
  __device__ __forceinline__ void load_by_columns(const uint8_t* tile, int half, uint32_t (&pair)[4]) const {
    ptx::ldmatrix_x4_trans(t_.score_columns(tile, block_, block_), pair);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int i = 8 * (r & 1) + 2 * t_.quad(), j = 8 * (r >> 1) + t_.group();
      pair[r] = mask(pair[r], meets(half, i, j), meets(half, i + 1, j));
    }
  }

  const KdaConsumerThread<Config>& t_;
  const int block_;
};

}  // namespace warpgrad::cuda::sm90
