#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/sm90/kda/gradients/decays.cuh"
#include "backends/cuda/sm90/kda/gradients/steep_block.cuh"

namespace warpgrad::cuda::sm90 {

// The pairs of tokens inside a chunk, on mma. With dN = beta dA and M such that dk+ = beta M,
//     dq_i  = sum_j dAqk_ij k_j exp(G_i - G_j) + exp(G_i) scale dQd_i
//     M_i   = sum_j dA_ij k_j exp(G_i - G_j) - exp(G_i) P_i
//     dk-_j = sum_i (dA_ij beta_i k_i + dAqk_ij q_i) exp(G_i - G_j) + exp(G_C - G_j) dKr_j
// over i > j; i = j has no part in dG and is added to dq and dk by itself.
//
// The rows of block b are relative to its first row (first[b]): q 2^(G - first), k 2^(G - first) and k 2^(first - G),
// as bfloat16 fragments made once. From block to block the reference moves in the float32 sums, Horner's way. dG
// multiplies the sums by the same rounded fragments, so that a pair is taken away from dG_j exactly as it was added to
// dG_i.
//
// A block that decays too much (`steep`) has k relative to the first row of the next block instead, and the pairs
// inside it apart.
template <class Config>
class KdaPairs {
 public:
  __device__ __forceinline__ explicit KdaPairs(const KdaConsumerThread<Config>& thread)
      : t_(thread), storage_(thread.storage) {}

  __device__ __forceinline__ void run(KdaStateGradients& state, const KdaDecays& decays, KdaKeyGradients& out) {
    start_rows(state, decays);
    add_rows(state, decays, out);
    ptx::bar_warp_sync();
    add_columns(out);
    ptx::bar_warp_sync();
    if constexpr (Config::kAnyDecay) {
#pragma unroll 1
      for (int block = 0; block < 4; ++block) {
        if (!(steep_ >> block & 1)) continue;
        KdaBlockSums sums;
        KdaSteepBlock<Config>(t_, block).run(sums);
        sums.add_to(block, out);
      }
      ptx::bar_warp_sync();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out.d_last[half] += __shfl_xor_sync(~0u, out.d_last[half], 1);
      out.d_last[half] += __shfl_xor_sync(~0u, out.d_last[half], 2);
    }
  }

 private:
  // dQd and P relative to the first row of block 0.
  __device__ __forceinline__ void start_rows(KdaStateGradients& state, const KdaDecays& decays) {
    const float factor[2] = {ptx::ex2_approx(decays.first[0][0]), ptx::ex2_approx(decays.first[0][1])};
    const float scaled[2] = {t_.params.scale * factor[0], t_.params.scale * factor[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      state.q[i] *= scaled[kda_key_half(i)];
      state.m[i] *= -factor[kda_key_half(i)];
    }
#pragma unroll
    for (int block = 0; block < 3; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to_next_[block][half] = ptx::ex2_approx(decays.first[block + 1][half] - decays.first[block][half]);
      }
    }
  }

  __device__ __forceinline__ void add_rows(KdaStateGradients& state, const KdaDecays& decays, KdaKeyGradients& out) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from_s = ptx::ex2_approx(decays.last[half]) * state.s_ds[half];
      out.d_last[half] = t_.quad() == 0 ? from_s : 0;  // to be summed over the quad
    }
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      KdaRawBlockRows raw;
      KdaBlockRows rows;
      float factor[8], reference[2];
      uint32_t frag_k[4], pair[2][4];
      raw.load(t_, block);
      load_pair<false>(0, block, block, pair[0]);
      const bool steep = find_steep(block, decays);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float next =
            block < 3 ? decays.first[block < 3 ? block + 1 : 3][half] : decays.last[half] - kKdaReferenceShift;
        reference[half] = steep ? next : decays.first[block][half];
      }
      make_factors(block, decays, reference, factor);
      raw.apply_norms(rows);
      make_fragments(block, rows, factor, frag_k);
      if (steep) move_reference(block, state);
#pragma unroll
      for (int n = 0; n < 2 * (4 - block); ++n) {  // dAqk, dA of each row of blocks; the next is loaded ahead
        const int i = block + n / 2;
        if (n + 1 < 2 * (4 - block)) load_pair<false>((n + 1) % 2, block + (n + 1) / 2, block, pair[(n + 1) % 2]);
        if (i == block && steep) continue;
        multiply_block((n % 2 ? state.m : state.q) + 8 * i, frag_k, pair[n % 2]);
      }
      finish_rows(block, state, decays, rows, reference, factor, out);
      if (!steep) move_reference(block, state);
    }
  }

  // Of dAqk (0) or dA (1), as B fragments.
  template <bool kByColumns>
  __device__ __forceinline__ void load_pair(int which, int block_i, int block_j, uint32_t (&pair)[4]) {
    const uint8_t* tile = which ? storage_.smem_da.bytes : storage_.smem_d_aqk.bytes;
    if constexpr (kByColumns) {
      ptx::ldmatrix_x4_trans(t_.score_columns(tile, block_i, block_j), pair);
    } else {
      ptx::ldmatrix_x4(t_.score_rows(tile, block_i, block_j), pair);
    }
  }

  __device__ __forceinline__ bool is_steep(int block) const { return Config::kAnyDecay && (steep_ >> block & 1); }

  // Whether one of the warp's keys decays too much between the first and the last row of the block. NaN does not.
  __device__ __forceinline__ bool find_steep(int block, const KdaDecays& decays) {
    if constexpr (!Config::kAnyDecay) return false;
    // `first` is shifted by half of what is allowed.
    constexpr float kLimit = kKdaReferenceShift - kKdaMaxBlockDecay;
    const bool steep = decays.g[8 * block + 5] - decays.first[block][0] < kLimit ||
                       decays.g[8 * block + 7] - decays.first[block][1] < kLimit;
    const bool any = __any_sync(~0u, steep);
    if (any) steep_ |= 1u << block;
    return any;
  }

  __device__ __forceinline__ void make_factors(int block, const KdaDecays& decays, const float (&reference)[2],
                                               float (&factor)[8]) {
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const float g = decays.g[8 * block + x];
      factor[x] = ptx::ex2_approx(g - decays.first[block][kda_key_half(x)]);
      inverse_[8 * block + x] = ptx::ex2_approx(reference[kda_key_half(x)] - g);
    }
  }

  __device__ __forceinline__ void make_fragments(int block, const KdaBlockRows& rows, const float (&factor)[8],
                                                 uint32_t (&frag_k)[4]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = kda_token(x);
      const float* inverse = inverse_ + 8 * block + x;
      frag_k[m] = ptx::cvt_pair<kKdaType>(rows.k[x] * inverse[0], rows.k[x + 1] * inverse[1]);
      frag_beta_k_[4 * block + m] = ptx::cvt_pair<kKdaType>(rows.k[x] * rows.beta[i] * factor[x],
                                                            rows.k[x + 1] * rows.beta[i + 1] * factor[x + 1]);
      frag_q_[4 * block + m] = ptx::cvt_pair<kKdaType>(rows.q[x] * factor[x], rows.q[x + 1] * factor[x + 1]);
    }
  }

  __device__ __forceinline__ void move_reference(int block, KdaStateGradients& state) {
    if (block == 3) return;
#pragma unroll
    for (int i = 8 * (block + 1); i < 32; ++i) {
      state.q[i] *= to_next_[block < 3 ? block : 0][kda_key_half(i)];
      state.m[i] *= to_next_[block < 3 ? block : 0][kda_key_half(i)];
    }
  }

  // The rows of a block are complete: dq, M (and with it dk+ and a part of dbeta), what dKr gives, and their parts of
  // dG.
  __device__ __forceinline__ void finish_rows(int block, const KdaStateGradients& state, const KdaDecays& decays,
                                              const KdaBlockRows& rows, const float (&reference)[2],
                                              const float (&factor)[8], KdaKeyGradients& out) {
    float diagonal[4], sum_beta[4] = {}, sum_q[4] = {};
    t_.load_tokens(storage_.d_aqk_diagonal, block, diagonal);
    const float to_last[2] = {ptx::ex2_approx(decays.last[0] - reference[0]),
                              ptx::ex2_approx(decays.last[1] - reference[1])};
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int i = 8 * block + x, half = kda_key_half(x), token = kda_token(x);
      const float m = state.m[i] * factor[x], dq = fmaf(diagonal[token], rows.k[x], state.q[i] * factor[x]);
      const float from_kr = state.r[i] * (inverse_[i] * to_last[half]);
      out.dq[i] = dq;
      out.dk[i] = fmaf(rows.beta[token], m, fmaf(diagonal[token], rows.q[x], from_kr));
      out.dg[i] = fmaf(state.q[i], kda_element(frag_q_ + 4 * block, x),
                       fmaf(-from_kr, rows.k[x], state.m[i] * kda_element(frag_beta_k_ + 4 * block, x)));
      out.d_last[half] = fmaf(rows.k[x], from_kr, out.d_last[half]);
      sum_beta[token] = fmaf(rows.k[x], m, sum_beta[token]);
      sum_q[token] = fmaf(rows.q[x], dq, sum_q[token]);
    }
    t_.store_key_sums(kKdaSumBeta, block, sum_beta);
    t_.store_key_sums(kKdaSumQ, block, sum_q);
  }

  // dk- of block b = 2^(first[b] - G) (D_b + to_next[b] (D_(b+1) + ...)), D_i the sums over the rows of block i. All
  // columns of a block of rows side by side.
  __device__ __forceinline__ void add_columns(KdaKeyGradients& out) {
    float sums[32] = {};
    uint32_t pair[2][4];
    load_pair<true>(0, 3, 3, pair[0]);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      uint32_t frag_k[4];
      float k_norm[4];
      ptx::ldmatrix_x4_trans(t_.key_block(storage_.smem_k.bytes) + kda_block_step(i), frag_k);
      t_.load_tokens(t_.token_scalars().k_norm, i, k_norm);
#pragma unroll
      for (int n = 0; n < 2 * (i + 1); ++n) {  // dAqk, dA of each block of columns; the next is loaded ahead
        const int block = i - n / 2;
        if (n + 1 < 2 * (i + 1)) {
          load_pair<true>((n + 1) % 2, i, i - (n + 1) / 2, pair[(n + 1) % 2]);
        } else if (i > 0) {
          load_pair<true>(0, i - 1, i - 1, pair[0]);
        }
        if (i == block && is_steep(block)) continue;
        multiply_block(sums + 8 * block, (n % 2 ? frag_beta_k_ : frag_q_) + 4 * i, pair[n % 2]);
      }
      finish_columns(i, sums + 8 * i, frag_k, k_norm, out);
#pragma unroll
      for (int block = 0; block < i; ++block) {
        // A steep block's columns are relative to the block after it.
        if (block == i - 1 && is_steep(block)) continue;
#pragma unroll
        for (int x = 0; x < 8; ++x) sums[8 * block + x] *= to_next_[i > 0 ? i - 1 : 0][kda_key_half(x)];
      }
    }
  }

  __device__ __forceinline__ void finish_columns(int block, const float* sums, const uint32_t (&frag_k)[4],
                                                 const float (&k_norm)[4], KdaKeyGradients& out) {
    float sum_k[4] = {};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = 8 * block + x;
      const float k[2] = {kda_element(frag_k, x) * k_norm[kda_token(x)],
                          kda_element(frag_k, x + 1) * k_norm[kda_token(x + 1)]};
      // The fragment of the rows' products again.
      const uint32_t rounded = ptx::cvt_pair<kKdaType>(k[0] * inverse_[i], k[1] * inverse_[i + 1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        out.dg[i + e] = fmaf(-sums[x + e], kda_element(&rounded, e), out.dg[i + e]);
        out.dk[i + e] = fmaf(sums[x + e], inverse_[i + e], out.dk[i + e]);
        sum_k[kda_token(x + e)] = fmaf(k[e], out.dk[i + e], sum_k[kda_token(x + e)]);
      }
    }
    t_.store_key_sums(kKdaSumK, block, sum_k);
  }

  const KdaConsumerThread<Config>& t_;
  KdaGradientsStorage<Config>& storage_;
  uint32_t frag_q_[16], frag_beta_k_[16];  // of the rows, as left operands
  float inverse_[32];                      // 2^(reference - G)
  float to_next_[3][2];                    // 2^(first[b + 1] - first[b])
  uint32_t steep_ = 0;                     // a bit a block, the same in the whole warp
};

}  // namespace warpgrad::cuda::sm90
