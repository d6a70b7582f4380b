#pragma once

// T = (I + A)^-1, A = diag(beta) N, in blocks of 16 x 16, and Aqk: the off-diagonal blocks and the inverse of the
// diagonal ones. T^ and A^ where there is no L2 norm, see KdaRowScales.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/scaled_copies.cuh"

namespace warpgrad::cuda::sm90 {

// Aqk of the warp's rows, bfloat16 fragments: its own diagonal block, the blocks before it in an odd block row, and the
// first two in the last two block rows.
struct KdaAqkFragments {
  uint32_t diagonal[4], previous[4], column_0[4], column_1[4];
};
// A of the warp's rows, in the same blocks; by multiply_by_inverse() -T_ii A_il.
struct KdaOffDiagonalFragments {
  uint32_t previous[4], column_0[4], column_1[4];
};

// tf32 operands are truncated, each by 3.5e-4 of itself in the mean.
constexpr float kKdaTruncation = 1.0007044f;

// beta_in of the rows group() and group() + 8, beta with the norm.
template <class Config>
__device__ __forceinline__ void load_row_betas(const KdaPrepareMemory<Config>& memory,
                                               const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                               float (&beta)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    beta[i] = ptx::ld_shared(memory.beta() + (16 * warp.block + warp.group() + 8 * i) * 4);
    if constexpr (!Config::kQkL2Norm) beta[i] *= scales.k_out[i] * ptx::rcp_approx(scales.t_out[i]);
  }
}

// Masks the diagonal blocks and inverts I + A by forward substitution, one column a lane; T_ii is left in shared memory
// as float16.
template <class Config>
__device__ __forceinline__ void invert_diagonal_block(const KdaPrepareMemory<Config>& memory,
                                                      const KdaPrepareWarp<Config>& warp,
                                                      const KdaRowScales<Config>& scales, const bool (&deep)[2],
                                                      const float (&beta)[2], KdaDiagonalBlocks& blocks,
                                                      uint32_t (&aqk)[4]) {
  constexpr int kColumnBytes = 80;  // of A's columns; the banks of neighbours differ
  const uint32_t columns = memory.aqk() + warp.block * 16 * kPanelRowBytes;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const KdaColumnScales<Config> column_scales(memory, warp, 16 * warp.block + 8 * n);
    const float2 k_out = column_scales.k_out, balance = column_scales.balance();
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = warp.group() + c / 2 * 8, column = 8 * n + 2 * warp.quad() + c % 2;
      const float correction = deep[c / 2] ? 1.0f : kKdaTruncation;
      const float a =
          column < row ? blocks.k[n][c] * (beta[c / 2] * correction) * (c % 2 ? balance.y : balance.x) : 0.0f;
      ptx::st_shared(columns + column * kColumnBytes + row * 4, a);
      const float q = scales.times_q_out(blocks.q[n][c] * correction, c / 2) * (c % 2 ? k_out.y : k_out.x);
      blocks.q[n][c] = column > row ? 0.0f : q;
    }
    aqk[2 * n] = ptx::cvt_pair<DType::kBFloat16>(blocks.q[n][0], blocks.q[n][1]);
    aqk[2 * n + 1] = ptx::cvt_pair<DType::kBFloat16>(blocks.q[n][2], blocks.q[n][3]);
  }
  __syncwarp();
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == warp.lane_idx % 16 ? 1.0f : 0.0f;
#pragma unroll
  for (int column = 0; column < 15; ++column) {
#pragma unroll
    for (int quarter = (column + 1) / 4; quarter < 4; ++quarter) {
      const uint4 a = ptx::ld_shared_v4(columns + column * kColumnBytes + quarter * 16);
      const uint32_t bits[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * quarter + i > column) x[4 * quarter + i] -= __uint_as_float(bits[i]) * x[column];
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // the lower lanes store the even rows, the upper ones, with the same columns, the odd
    const uint32_t upper = warp.lane_idx / 16, column = warp.lane_idx % 16, row = 16 * warp.block + 2 * i + upper;
    const uint32_t chunk = Config::Panel::chunk_address(memory.aqk(), row, 2 * warp.block + column / 8);
    ptx::st_shared_f16(chunk + column % 8 * 2, upper ? x[2 * i + 1] : x[2 * i]);
  }
  __syncwarp();
}

// One block of Aqk and of A: the warp's rows times the 16 rows from `first_row` on of the copies of k, which stand for
// the tokens of block `column_block`.
template <class Config>
__device__ __forceinline__ void multiply_off_diagonal(const KdaPrepareMemory<Config>& memory,
                                                      const KdaPrepareWarp<Config>& warp,
                                                      const KdaRowScales<Config>& scales,
                                                      const KdaQueryFragments<Config>& queries, const float (&beta)[2],
                                                      int first_row, int column_block, uint32_t (&aqk)[4],
                                                      uint32_t (&a)[4]) {
  float q_sums[2][4] = {}, k_sums[2][4] = {};
  const uint32_t row = first_row + warp.lane_idx % 8 + warp.lane_idx / 16 * 8, chunk = warp.lane_idx / 8 % 2;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t keys[4];
    ptx::ldmatrix_x4(Config::KeyTile::chunk_address(memory.w(), row, 2 * step + chunk), keys);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ptx::mma_m16n8k16<DType::kFloat16>(q_sums[n], queries.q[step], keys[2 * n], keys[2 * n + 1]);
      ptx::mma_m16n8k16<DType::kFloat16>(k_sums[n], queries.k[step], keys[2 * n], keys[2 * n + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const KdaColumnScales<Config> column_scales(memory, warp, 16 * column_block + 8 * n);
    const float2 k_out = column_scales.k_out, balance = column_scales.balance();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      aqk[2 * n + i] = ptx::cvt_pair<DType::kBFloat16>(scales.times_q_out(q_sums[n][2 * i], i) * k_out.x,
                                                       scales.times_q_out(q_sums[n][2 * i + 1], i) * k_out.y);
      a[2 * n + i] = ptx::cvt_pair<DType::kFloat16>(k_sums[n][2 * i] * beta[i] * balance.x,
                                                    k_sums[n][2 * i + 1] * beta[i] * balance.y);
    }
  }
}

// d[n], columns 8 n to 8 n + 7, += A B with B [16 x 16] of float16.
__device__ __forceinline__ void add_product_16x16(float (&d)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  ptx::mma_m16n8k16<DType::kFloat16>(d[0], a, b[0], b[1]);
  ptx::mma_m16n8k16<DType::kFloat16>(d[1], a, b[2], b[3]);
}

// a = -T_ii a, as the left operand of the next product.
__device__ __forceinline__ void multiply_by_inverse(const uint32_t (&t_ii)[4], uint32_t (&a)[4]) {
  float y[2][4] = {};
  uint32_t b[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i] = ptx::movmatrix_trans(a[i]);
  add_product_16x16(y, t_ii, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ptx::cvt_pair<DType::kFloat16>(-y[i / 2][i % 2 * 2], -y[i / 2][i % 2 * 2 + 1]);
}

// The off-diagonal blocks, of A times -T_ii. Block row 1 reads the second copies of k, all others the first.
template <class Config>
__device__ __forceinline__ void make_off_diagonal(const KdaPrepareMemory<Config>& memory,
                                                  const KdaPrepareWarp<Config>& warp,
                                                  const KdaRowScales<Config>& scales, const float (&beta)[2],
                                                  KdaQueryFragments<Config>& queries, KdaAqkFragments& aqk,
                                                  KdaOffDiagonalFragments& y) {
  const uint32_t block = warp.block;
  uint32_t t_ii[4];
  ptx::ldmatrix_x4(warp.square(memory.aqk(), block, block), t_ii);
  if (block % 2 == 1) {
    multiply_off_diagonal(memory, warp, scales, queries, beta, block == 1 ? 48 : 32, block - 1, aqk.previous,
                          y.previous);
    multiply_by_inverse(t_ii, y.previous);
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
    multiply_off_diagonal(memory, warp, scales, queries, beta, 0, 0, aqk.column_0, y.column_0);
    multiply_off_diagonal(memory, warp, scales, queries, beta, 16, 1, aqk.column_1, y.column_1);
    multiply_by_inverse(t_ii, y.column_0);
    multiply_by_inverse(t_ii, y.column_1);
  }
}

// Kd, k times the decay from the start of the chunk, as float16 over the copies of k. Block 3 stands at the start of
// block 2 already.
template <class Config>
__device__ __forceinline__ void store_decayed_keys(const KdaPrepareMemory<Config>& memory,
                                                   const KdaPrepareWarp<Config>& warp,
                                                   KdaQueryFragments<Config>& queries) {
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t (&k)[4] = queries.k[step];
    if (warp.block > 0) {
      uint32_t factors[2];
      KdaQueryFragments<Config>::load_factors(warp, memory.kept_to_start(warp.block == 1 ? 1 : 2), step, factors);
      KdaQueryFragments<Config>::scale(k, factors);
    }
    ptx::stmatrix_x4(warp.fragment(memory.w(), step), k[0], k[1], k[2], k[3]);
  }
}

// T's off-diagonal blocks, T_ij = sum over l of (-T_ii A_il) T_lj, diagonal by diagonal.
template <class Config>
__device__ __forceinline__ void make_inverse(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                             const KdaOffDiagonalFragments& y) {
  const uint32_t block = warp.block;
  float sums[2][4];
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = 0;
  };
  const auto add = [&](const uint32_t (&y_il)[4], int l, int j) {
    uint32_t t_lj[4];
    ptx::ldmatrix_x4_trans(warp.square(memory.aqk(), l, j), t_lj);
    add_product_16x16(sums, y_il, t_lj);
  };
  const auto store = [&](int j) {
    uint32_t t_ij[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      t_ij[i] = ptx::cvt_pair<DType::kFloat16>(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
    }
    ptx::stmatrix_x4(warp.square(memory.aqk(), block, j), t_ij[0], t_ij[1], t_ij[2], t_ij[3]);
  };
  clear();
  if (block == 1) {
    add(y.previous, 0, 0);
    store(0);
  } else if (block == 2) {
    add(y.column_1, 1, 1);
    store(1);
  } else if (block == 3) {
    add(y.previous, 2, 2);
    store(2);
  }
  __syncthreads();
  clear();
  if (block == 2) {
    add(y.column_0, 0, 0);
    add(y.column_1, 1, 0);
    store(0);
  } else if (block == 3) {
    add(y.column_1, 1, 1);
    add(y.previous, 2, 1);
    store(1);
  }
  __syncthreads();
  clear();
  if (block == 3) {
    add(y.column_0, 0, 0);
    add(y.column_1, 1, 0);
    add(y.previous, 2, 0);
    store(0);
  }
}

}  // namespace warpgrad::cuda::sm90
