#pragma once

// Aqk and A = N diag(beta) in blocks of 16 x 16: the diagonal ones are finished, the others multiplied. Without the L2
// norm A^, see KdaRowScales.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/scaled_copies.cuh"

namespace warpgrad::cuda::sm90 {

// Of the warp's rows, float16 fragments: the block before its diagonal one in an odd block row, and the first two in
// the last two block rows. A at first, then Y = -T_ii A.
struct KdaOffDiagonalFragments {
  uint32_t previous[4], column_0[4], column_1[4];
};
// Aqk of the warp's rows, bfloat16 fragments.
struct KdaAqkFragments : KdaOffDiagonalFragments {
  uint32_t diagonal[4];
};

// tf32 operands are truncated, each by 3.5e-4 of itself in the mean.
constexpr float kKdaTruncation = 1.0007044f;

// What products with eight source tokens are multiplied by: those of deep rows were made without beta.
template <class Config>
__device__ __forceinline__ float2 source_corrections(const KdaPrepareMemory<Config>& memory,
                                                     const KdaPrepareWarp<Config>& warp, int first, bool deep) {
  constexpr float kUsual = kKdaTruncation * Config::kOverSource;
  if constexpr (Config::kShallow) return {kUsual, kUsual};
  const float2 beta_in = load_beta_in(memory, warp, first);
  return deep ? beta_in : float2{kUsual, kUsual};
}

// Masks the diagonal blocks. That of A goes to shared memory, in float32 and by columns.
template <class Config>
__device__ __forceinline__ void finish_diagonal_block(const KdaPrepareMemory<Config>& memory,
                                                      const KdaPrepareWarp<Config>& warp,
                                                      const KdaRowScales<Config>& scales, const bool (&deep)[2],
                                                      KdaDiagonalBlocks& blocks, uint32_t (&aqk)[4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int first = 16 * warp.block + 8 * n;
    const float2 source_out = load_source_out(memory, warp, first);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 corrections = source_corrections(memory, warp, first, deep[i]);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float correction = c ? corrections.y : corrections.x;
        const int row = warp.group() + 8 * i, column = 8 * n + 2 * warp.quad() + c;
        float& q = blocks.q[n][2 * i + c];
        const float a = scales.times_p(blocks.k[n][2 * i + c] * correction, i);
        ptx::st_shared(memory.columns(warp.block) + column * memory.kColumnBytes + row * 4, column < row ? a : 0);
        q = column > row ? 0 : scales.times_q_out(q * correction, i) * (c ? source_out.y : source_out.x);
      }
      aqk[2 * n + i] = ptx::cvt_pair<DType::kBFloat16>(blocks.q[n][2 * i], blocks.q[n][2 * i + 1]);
    }
  }
}

// One block of Aqk and of A: the warp's rows times the 16 rows from `first_row` on of the copies of beta k, which stand
// for the tokens of block `column_block`.
template <class Config>
__device__ __forceinline__ void multiply_off_diagonal(const KdaPrepareMemory<Config>& memory,
                                                      const KdaPrepareWarp<Config>& warp,
                                                      const KdaRowScales<Config>& scales,
                                                      const KdaQueryFragments<Config>& queries, int first_row,
                                                      int column_block, uint32_t (&aqk)[4], uint32_t (&a)[4]) {
  float q_sums[2][4] = {}, k_sums[2][4] = {};
  const uint32_t row = first_row + warp.lane_idx % 8 + warp.lane_idx / 16 * 8, chunk = warp.lane_idx / 8 % 2;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t keys[4];
    ptx::ldmatrix_x4(Config::KeyTile::chunk_address(memory.kd(), row, 2 * step + chunk), keys);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ptx::mma_m16n8k16<DType::kFloat16>(q_sums[n], queries.q[step], keys[2 * n], keys[2 * n + 1]);
      ptx::mma_m16n8k16<DType::kFloat16>(k_sums[n], queries.k[step], keys[2 * n], keys[2 * n + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 source_out = load_source_out(memory, warp, 16 * column_block + 8 * n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float q_x = q_sums[n][2 * i] * Config::kOverSource, q_y = q_sums[n][2 * i + 1] * Config::kOverSource;
      const float k_x = k_sums[n][2 * i] * Config::kOverSource, k_y = k_sums[n][2 * i + 1] * Config::kOverSource;
      aqk[2 * n + i] = ptx::cvt_pair<DType::kBFloat16>(scales.times_q_out(q_x, i) * source_out.x,
                                                       scales.times_q_out(q_y, i) * source_out.y);
      a[2 * n + i] = ptx::cvt_pair<DType::kFloat16>(scales.times_p(k_x, i), scales.times_p(k_y, i));
    }
  }
}

// The off-diagonal blocks. Block row 1 reads the second copies of beta k, all
// others the first.
template <class Config>
__device__ __forceinline__ void make_off_diagonal(const KdaPrepareMemory<Config>& memory,
                                                  const KdaPrepareWarp<Config>& warp,
                                                  const KdaRowScales<Config>& scales,
                                                  KdaQueryFragments<Config>& queries, KdaAqkFragments& aqk,
                                                  KdaOffDiagonalFragments& a) {
  const uint32_t block = warp.block;
  if (block % 2 == 1) {
    multiply_off_diagonal(memory, warp, scales, queries, block == 1 ? 48 : 32, block - 1, aqk.previous, a.previous);
  }
  if (block == 3) {  // from the start of block 3 back to that of block 2, the reference of the copies 0 and 1
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      uint32_t factors[2];
      KdaQueryFragments<Config>::load_factors(warp, memory.block_2(), step, factors);
      KdaQueryFragments<Config>::scale(queries.q[step], factors);
      KdaQueryFragments<Config>::scale(queries.k[step], factors);
    }
  }
  if (block >= 2) {
    multiply_off_diagonal(memory, warp, scales, queries, 0, 0, aqk.column_0, a.column_0);
    multiply_off_diagonal(memory, warp, scales, queries, 16, 1, aqk.column_1, a.column_1);
  }
}

// The warp's rows of Aqk, over those of Kr or Qd.
template <class Config>
__device__ __forceinline__ void store_aqk(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                          const KdaAqkFragments& aqk) {
  const auto store = [&](int j, const uint32_t (&x)[4]) {
    ptx::stmatrix_x4(warp.triangle_block(memory.aqk(), j), x[0], x[1], x[2], x[3]);
  };
  store(warp.block, aqk.diagonal);
  if (warp.block % 2 == 1) store(warp.block - 1, aqk.previous);
  if (warp.block >= 2) {
    store(0, aqk.column_0);
    store(1, aqk.column_1);
  }
}

// Kd, k times the decay from the start of the chunk, over the copies of beta k. Block 3 stands at the start of block 2
// already.
template <class Config>
__device__ __forceinline__ void store_decayed_keys(const KdaPrepareMemory<Config>& memory,
                                                   const KdaPrepareWarp<Config>& warp,
                                                   const KdaRowScales<Config>& scales,
                                                   const KdaQueryFragments<Config>& queries) {
  const uint32_t to_start = memory.to_start(warp.block == 1 ? 1 : 2);
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t kd[4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float2 start = {1, 1};
      if (warp.block > 0) start = ptx::ld_shared_v2(to_start + (16 * step + 8 * n + 2 * warp.quad()) * 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 k = ptx::widen_pair<DType::kFloat16>(queries.k[step][2 * n + i]);
        kd[2 * n + i] =
            ptx::cvt_pair<DType::kBFloat16>(scales.times_k_out(k.x * start.x, i), scales.times_k_out(k.y * start.y, i));
      }
    }
    ptx::stmatrix_x4(warp.fragment(memory.kd(), step), kd[0], kd[1], kd[2], kd[3]);
  }
}

}  // namespace warpgrad::cuda::sm90
