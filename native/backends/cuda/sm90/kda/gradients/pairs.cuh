#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/sm90/kda/gradients/decays.cuh"
#include "backends/cuda/sm90/kda/gradients/steep_block.cuh"

namespace warpgrad::cuda::sm90 {

// The pairs of tokens inside a chunk, on mma: a later row i receives, an earlier one j is their source,
//     dq_i = sum_j A_ij (beta_j k_j) exp(G_i - G_j) + exp(G_i) scale dQd_i
//     M_i  = sum_j B_ij (beta_j k_j) exp(G_i - G_j) - exp(G_i) P_i
//     N_j  = sum_i (A_ij q_i + B_ij k_i) exp(G_i - G_j) + exp(G_C - G_j) dKr_j          dk = M + beta N
// over i > j; i = j has no part in dG and comes later (finish_norms).
//
// The rows of block b are relative to its first row (first[b]): q 2^(G - first), k 2^(G - first) and
// beta k 2^(first - G), as bfloat16 fragments made once. From block to block the reference moves in the float32 sums,
// Horner's way. dG multiplies the sums by the same rounded fragments, so that a pair is taken away from dG_j exactly as
// it was added to dG_i.
//
// A block that decays too much (`steep`) has its sources relative to the first row of the next block instead, and the
// pairs inside it apart.
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
        if (steep_ >> block & 1) KdaSteepBlock<Config>(t_, block).run(out);
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
#pragma unroll
    for (int half = 0; half < 2; ++half) first_[half] = decays.first(0, half);
    const float factor[2] = {ptx::ex2_approx(first_[0]), ptx::ex2_approx(first_[1])};
    const float scaled[2] = {t_.params.scale * factor[0], t_.params.scale * factor[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      state.q(i) *= scaled[kda_key_half(i)];
      state.m(i) *= -factor[kda_key_half(i)];
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
      uint32_t source[4], pair[2][4];
      raw.load(t_, block);
      load_pair<false>(0, block, block, pair[0]);
      const bool steep = find_steep(block, decays);
      float next[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        next[half] = block < 3 ? decays.first(block < 3 ? block + 1 : 3, half) : decays.last[half] - kKdaReferenceShift;
        if (block < 3) to_next_[block < 3 ? block : 0][half] = ptx::ex2_approx(next[half] - first_[half]);
        reference[half] = steep ? next[half] : first_[half];
      }
      make_factors(block, decays, reference, factor);
      raw.apply_norms(rows);
      make_fragments(block, rows, factor, source);
      start_source(block, state, decays, rows, source, reference, out);
      if (steep) move_reference(block, state);
#pragma unroll
      for (int n = 0; n < 2 * (4 - block); ++n) {  // A, B of each row of blocks; the next is loaded ahead
        const int i = block + n / 2;
        if (n + 1 < 2 * (4 - block)) load_pair<false>((n + 1) % 2, block + (n + 1) / 2, block, pair[(n + 1) % 2]);
        if (i == block && steep) continue;
        multiply_block((n % 2 ? &state.m(8 * i) : &state.q(8 * i)), source, pair[n % 2]);
      }
      finish_rows(block, state, factor, out);
      if (!steep) move_reference(block, state);
#pragma unroll
      for (int half = 0; half < 2; ++half) first_[half] = next[half];
    }
  }

  // Of A (0) or B (1), as B fragments.
  template <bool kByColumns>
  __device__ __forceinline__ void load_pair(int which, int block_i, int block_j, uint32_t (&pair)[4]) {
    const uint8_t* tile = which ? storage_.smem_b.bytes : storage_.smem_a.bytes;
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
    const bool steep = decays.g[8 * block + 5] - first_[0] < kLimit || decays.g[8 * block + 7] - first_[1] < kLimit;
    const bool any = __any_sync(~0u, steep);
    if (any) steep_ |= 1u << block;
    return any;
  }

  __device__ __forceinline__ void make_factors(int block, const KdaDecays& decays, const float (&reference)[2],
                                               float (&factor)[8]) {
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const float g = decays.g[8 * block + x];
      factor[x] = ptx::ex2_approx(g - first_[kda_key_half(x)]);
      inverse_[8 * block + x] = ptx::ex2_approx(reference[kda_key_half(x)] - g);
    }
  }

  __device__ __forceinline__ void make_fragments(int block, const KdaBlockRows& rows, const float (&factor)[8],
                                                 uint32_t (&source)[4]) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = kda_token(x);
      const float* inverse = inverse_ + 8 * block + x;
      source[m] =
          ptx::cvt_pair<kKdaType>(rows.k[x] * inverse[0] * rows.beta[i], rows.k[x + 1] * inverse[1] * rows.beta[i + 1]);
      frag_q_[4 * block + m] = ptx::cvt_pair<kKdaType>(rows.q[x] * factor[x], rows.q[x + 1] * factor[x + 1]);
      frag_k_[4 * block + m] = ptx::cvt_pair<kKdaType>(rows.k[x] * factor[x], rows.k[x + 1] * factor[x + 1]);
    }
  }

  __device__ __forceinline__ void move_reference(int block, KdaStateGradients& state) {
    if (block == 3) return;
#pragma unroll
    for (int i = 8 * (block + 1); i < 32; ++i) {
      state.q(i) *= to_next_[block < 3 ? block : 0][kda_key_half(i)];
      state.m(i) *= to_next_[block < 3 ? block : 0][kda_key_half(i)];
    }
  }

  // What dKr gives to N, to dG and to dG_C.
  __device__ __forceinline__ void start_source(int block, KdaStateGradients& state, const KdaDecays& decays,
                                               const KdaBlockRows& rows, const uint32_t (&source)[4],
                                               const float (&reference)[2], KdaKeyGradients& out) {
    const float to_last[2] = {ptx::ex2_approx(decays.last[0] - reference[0]),
                              ptx::ex2_approx(decays.last[1] - reference[1])};
    float sum_source[4] = {};
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int i = 8 * block + x, half = kda_key_half(x), token = kda_token(x);
      const float from_last = state.n[i] * to_last[half], n = from_last * inverse_[i];
      const float k = kda_element(source, x);
      out.dk[i] = rows.beta[token] * n;
      out.dg[i] = -from_last * k;
      out.d_last[half] = fmaf(from_last, k, out.d_last[half]);
      sum_source[token] = fmaf(rows.k[x], n, sum_source[token]);
    }
    t_.store_key_sums(kKdaSumSource, block, sum_source);
  }

  // The rows of a block are complete: dq, M, and their parts of dG.
  __device__ __forceinline__ void finish_rows(int block, KdaStateGradients& state, const float (&factor)[8],
                                              KdaKeyGradients& out) {
    float dq[8], dk[8], sum_q[4] = {}, sum_m[4] = {};
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int i = 8 * block + x, token = kda_token(x);
      const float q = kda_element(frag_q_ + 4 * block, x), k = kda_element(frag_k_ + 4 * block, x);
      dq[x] = state.q(i) * factor[x];
      dk[x] = fmaf(state.m(i), factor[x], out.dk[i]);
      out.dg[i] = fmaf(state.q(i), q, fmaf(state.m(i), k, out.dg[i]));
      sum_q[token] = fmaf(state.q(i), q, sum_q[token]);
      sum_m[token] = fmaf(state.m(i), k, sum_m[token]);
    }
    // Else the factors are kept, to be applied at the end.
    ptx::pin_registers(dq);
    ptx::pin_registers(dk);
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      out.dq[8 * block + x] = dq[x];
      out.dk[8 * block + x] = dk[x];
    }
    t_.store_key_sums(kKdaSumQ, block, sum_q);
    t_.store_key_sums(kKdaSumM, block, sum_m);
  }

  // N of block b = 2^(first[b] - G) (D_b + to_next[b] (D_(b+1) + ...)), D_i the sums over the rows of block i. All
  // columns of a block of rows side by side.
  __device__ __forceinline__ void add_columns(KdaKeyGradients& out) {
    float sums[32] = {};
    uint32_t pair[2][4];
    load_pair<true>(0, 3, 3, pair[0]);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      uint32_t raw_k[4];
      float k_norm[4], beta[4];
      ptx::ldmatrix_x4_trans(t_.key_block(storage_.smem_k.bytes) + kda_block_step(i), raw_k);
      t_.load_tokens(t_.token_scalars().k_norm, i, k_norm);
      t_.load_tokens(t_.token_scalars().beta, i, beta);
#pragma unroll
      for (int n = 0; n < 2 * (i + 1); ++n) {  // A, B of each block of columns; the next is loaded ahead
        const int block = i - n / 2;
        if (n + 1 < 2 * (i + 1)) {
          load_pair<true>((n + 1) % 2, i, i - (n + 1) / 2, pair[(n + 1) % 2]);
        } else if (i > 0) {
          load_pair<true>(0, i - 1, i - 1, pair[0]);
        }
        if (i == block && is_steep(block)) continue;
        multiply_block(sums + 8 * block, (n % 2 ? frag_k_ : frag_q_) + 4 * i, pair[n % 2]);
      }
      finish_columns(i, sums + 8 * i, raw_k, k_norm, beta, out);
#pragma unroll
      for (int block = 0; block < i; ++block) {
        // A steep block's columns are relative to the block after it.
        if (block == i - 1 && is_steep(block)) continue;
#pragma unroll
        for (int x = 0; x < 8; ++x) sums[8 * block + x] *= to_next_[i > 0 ? i - 1 : 0][kda_key_half(x)];
      }
    }
  }

  __device__ __forceinline__ void finish_columns(int block, const float* sums, const uint32_t (&raw_k)[4],
                                                 const float (&k_norm)[4], const float (&beta)[4],
                                                 KdaKeyGradients& out) {
    float sum_source[4] = {};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int x = 2 * m, i = 8 * block + x, token = kda_token(x);
      const float k[2] = {kda_element(raw_k, x) * k_norm[token] * inverse_[i],
                          kda_element(raw_k, x + 1) * k_norm[token + 1] * inverse_[i + 1]};
      // The fragment of the rows' products again.
      const uint32_t source = ptx::cvt_pair<kKdaType>(k[0] * beta[token], k[1] * beta[token + 1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        out.dg[i + e] = fmaf(-sums[x + e], kda_element(&source, e), out.dg[i + e]);
        out.dk[i + e] = fmaf(beta[token + e] * sums[x + e], inverse_[i + e], out.dk[i + e]);
        sum_source[token + e] = fmaf(k[e], sums[x + e], sum_source[token + e]);
      }
    }
    t_.template store_key_sums<true>(kKdaSumSource, block, sum_source);
  }

  const KdaConsumerThread<Config>& t_;
  KdaGradientsStorage<Config>& storage_;
  uint32_t frag_q_[16], frag_k_[16];  // of the rows that receive
  float inverse_[32];                 // 2^(reference - G)
  float to_next_[3][2];               // 2^(first[b + 1] - first[b])
  float first_[2];                    // of the block at hand
  uint32_t steep_ = 0;                // a bit a block, the same in the whole warp
};

}  // namespace warpgrad::cuda::sm90
