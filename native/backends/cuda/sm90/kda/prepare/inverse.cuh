#pragma once

// T = (I + A)^-1 in blocks of 16 x 16, which is unit lower triangular. Without the L2 norm T^ until it is stored.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/off_diagonal.cuh"

namespace warpgrad::cuda::sm90 {

// Inverts the diagonal block of I + A by forward substitution, one column a lane. T_ii is left in shared memory as
// float16.
template <class Config>
__device__ __forceinline__ void invert_diagonal_block(const KdaPrepareMemory<Config>& memory,
                                                      const KdaPrepareWarp<Config>& warp) {
  const uint32_t columns = memory.columns(warp.block);
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == warp.lane_idx % 16 ? 1.0f : 0.0f;
#pragma unroll
  for (int column = 0; column < 15; ++column) {
#pragma unroll
    for (int quarter = (column + 1) / 4; quarter < 4; ++quarter) {
      const uint4 a = ptx::ld_shared_v4(columns + column * memory.kColumnBytes + quarter * 16);
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
    const uint32_t upper = warp.lane_idx / 16, column = warp.lane_idx % 16, row = 2 * i + upper;
    ptx::st_shared_f16(memory.element(memory.t_ii(warp.block), row, column), upper ? x[2 * i + 1] : x[2 * i]);
  }
}

// A block as accumulators, [n] for the columns 8 n to 8 n + 7, from its float16 fragments, and back.
__device__ __forceinline__ void widen_block(const uint32_t (&pairs)[4], float (&x)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 values = ptx::widen_pair<DType::kFloat16>(pairs[i]);
    x[i / 2][i % 2 * 2] = values.x;
    x[i / 2][i % 2 * 2 + 1] = values.y;
  }
}
__device__ __forceinline__ void round_block(const float (&x)[2][4], uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = ptx::cvt_pair<DType::kFloat16>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
  }
}

// d += A B with B [16 x 16] of float16.
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
  round_block(y, a);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] ^= 0x80008000u;
}

// Blocks in float16 between a warp's fragments and shared memory.
template <class Config>
__device__ __forceinline__ void store_block(const KdaPrepareWarp<Config>& warp, uint32_t address,
                                            const uint32_t (&x)[4]) {
  ptx::stmatrix_x4(warp.block_fragment(address), x[0], x[1], x[2], x[3]);
}
// d += A times the block at `address`.
template <class Config>
__device__ __forceinline__ void add_product_with_block(const KdaPrepareWarp<Config>& warp, float (&d)[2][4],
                                                       const uint32_t (&a)[4], uint32_t address) {
  uint32_t b[4];
  ptx::ldmatrix_x4_trans(warp.block_fragment(address), b);
  add_product_16x16(d, a, b);
}

// One of T's blocks of the warp's rows, as bfloat16, to its place.
template <class Config>
__device__ __forceinline__ void store_t_block(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                              const float (&t)[2][4], int j) {
  uint32_t pairs[4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 source_out = load_source_out(memory, warp, 16 * j + 8 * n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pairs[2 * n + i] = ptx::cvt_pair<DType::kBFloat16>(scales.over_source_out(t[n][2 * i], i) * source_out.x,
                                                         scales.over_source_out(t[n][2 * i + 1], i) * source_out.y);
    }
  }
  ptx::stmatrix_x4(warp.triangle_block(memory.t(), j), pairs[0], pairs[1], pairs[2], pairs[3]);
}

// The other blocks of T, in three steps with barriers between. With Y_ij = -T_ii A_ij:
//   T_10 = Y_10 T_00,  T_32 = Y_32 T_22,  T_2j = sum over l < 2 of Y_2l T_lj,
//   T_3j = sum over l < 2 of (Y_3l + Y_32 Y_2l) T_lj.
//
// The first: Y in place of A.
template <class Config>
__device__ __forceinline__ void begin_inverse(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp, KdaOffDiagonalFragments& y) {
  uint32_t t_ii[4];
  ptx::ldmatrix_x4(warp.block_fragment(memory.t_ii(warp.block)), t_ii);
  if (warp.block % 2 == 1) multiply_by_inverse(t_ii, y.previous);
  if (warp.block >= 2) {
    multiply_by_inverse(t_ii, y.column_0);
    multiply_by_inverse(t_ii, y.column_1);
  }
}

// The second, over Kr, which has left: the diagonal blocks, T_10 and T_32. T_10 and Y_2l for others.
template <class Config>
__device__ __forceinline__ void continue_inverse(const KdaPrepareMemory<Config>& memory,
                                                 const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                                 const KdaOffDiagonalFragments& y) {
  const uint32_t block = warp.block;
  if (block == 2) {
    store_block(warp, memory.y_2(0), y.column_0);
    store_block(warp, memory.y_2(1), y.column_1);
  }
  float t[2][4];
  if (block % 2 == 1) {
#pragma unroll
    for (int i = 0; i < 8; ++i) t[i / 4][i % 4] = 0;
    add_product_with_block(warp, t, y.previous, memory.t_ii(block - 1));
    if (block == 1) {
      uint32_t t_10[4];
      round_block(t, t_10);
      store_block(warp, memory.t_10(), t_10);
    }
    store_t_block(memory, warp, scales, t, block - 1);
  }
  uint32_t t_ii[4];
  ptx::ldmatrix_x4(warp.block_fragment(memory.t_ii(block)), t_ii);
  widen_block(t_ii, t);
  store_t_block(memory, warp, scales, t, block);
}

// y += y_32 Y_2j.
template <class Config>
__device__ __forceinline__ void add_through_block_2(const KdaPrepareMemory<Config>& memory,
                                                    const KdaPrepareWarp<Config>& warp, const uint32_t (&y_32)[4],
                                                    int j, uint32_t (&y)[4]) {
  float sums[2][4];
  widen_block(y, sums);
  add_product_with_block(warp, sums, y_32, memory.y_2(j));
  round_block(sums, y);
}

// The third: the last two block rows.
template <class Config>
__device__ __forceinline__ void finish_inverse(const KdaPrepareMemory<Config>& memory,
                                               const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                               KdaOffDiagonalFragments& y) {
  if (warp.block < 2) return;
  if (warp.block == 3) {
    add_through_block_2(memory, warp, y.previous, 0, y.column_0);
    add_through_block_2(memory, warp, y.previous, 1, y.column_1);
  }
  float t_0[2][4] = {}, t_1[2][4] = {};
  add_product_with_block(warp, t_0, y.column_0, memory.t_ii(0));
  add_product_with_block(warp, t_1, y.column_1, memory.t_ii(1));
  add_product_with_block(warp, t_0, y.column_1, memory.t_10());
  store_t_block(memory, warp, scales, t_0, 0);
  store_t_block(memory, warp, scales, t_1, 1);
}

}  // namespace warpgrad::cuda::sm90
