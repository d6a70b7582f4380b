#pragma once

// The 16 x 16 diagonal blocks of Aqk and N where dividing by the decay from the block's start would overflow.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/row_scales.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mma.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

constexpr float kKdaDeepestLog2 = -115.5f;  // 1 / 2^that leaves room for k below 2^12; 16 steps of -5 are not deeper

// Accumulators of a diagonal block: [n][..], columns 8 n to 8 n + 7.
struct KdaDiagonalBlocks {
  float q[2][4] = {};  // Aqk
  float k[2][4] = {};  // N
};

// Whether some row of the warp has decayed further than can be divided by.
template <class Config>
__device__ __forceinline__ bool has_deep_rows(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp) {
  bool deep = false;
  for (int key = 4 * warp.lane_idx; key < Config::kKeys; key += 4 * kWarpThreads) {
    const uint4 bits = ptx::ld_shared_v4(memory.block_sum(warp.block) + 4 * key);
    const float lowest = fminf(fminf(__uint_as_float(bits.x), __uint_as_float(bits.y)),
                               fminf(__uint_as_float(bits.z), __uint_as_float(bits.w)));
    deep = deep || lowest < kKdaDeepestLog2;
  }
  return __any_sync(~0u, deep);
}

// Which of the rows group() and group() + 8 these are. Told by the row alone: later tokens change nothing of it.
template <class Config>
__device__ __forceinline__ void find_deep_rows(const float (&L)[2 * Config::kSteps][4], bool (&deep)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float lowest = 0;
#pragma unroll
    for (int n = 0; n < 2 * Config::kSteps; ++n) lowest = fminf(lowest, fminf(L[n][2 * i], L[n][2 * i + 1]));
    lowest = fminf(lowest, __shfl_xor_sync(~0u, lowest, 1));
    lowest = fminf(lowest, __shfl_xor_sync(~0u, lowest, 2));
    deep[i] = lowest < kKdaDeepestLog2;
  }
}

// Two bfloat16 times factors, as float16.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float x, float y) {
  const float2 values = ptx::widen_pair<DType::kBFloat16>(pair);
  return ptx::cvt_pair<DType::kFloat16>(values.x * x, values.y * y);
}

// Adds the second half x first half of groups of 2 kHalf rows, the last row of the first half between them as reference.
template <class Config, int kHalf>
__device__ __forceinline__ void add_half_products(const KdaPrepareMemory<Config>& memory,
                                                  const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                                  const float (&L)[2 * Config::kSteps][4], const bool (&deep)[2],
                                                  KdaDiagonalBlocks& blocks) {
  constexpr bool kAcross = kHalf == 8;  // the reference of rows 8 to 15 is row 7; else each 8 rows have their own
  const int reference = kAcross ? 7 : (warp.group() & ~(2 * kHalf - 1)) + kHalf - 1;
  const int source = 4 * reference + warp.quad();
  KdaDiagonalBlocks halves;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t k[4], q[4];
    ptx::bar_warp_sync();
    ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
    ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&l)[4] = L[2 * step + n];
      float at[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) at[i] = __shfl_sync(~0u, l[kAcross ? i % 2 : i], source);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float decay_x = ptx::ex2_approx(-fabsf(l[2 * i] - at[2 * i]));
        const float decay_y = ptx::ex2_approx(-fabsf(l[2 * i + 1] - at[2 * i + 1]));
        const float k_in = scales.k_in[i], q_in = scales.q_in[i];
        k[2 * n + i] = scaled_pair(k[2 * n + i], k_in * decay_x, k_in * decay_y);
        q[2 * n + i] = scaled_pair(q[2 * n + i], q_in * decay_x, q_in * decay_y);
      }
    }
#pragma unroll
    for (int columns = 0; columns < (kAcross ? 1 : 2); ++columns) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        ptx::mma_m16n8k8<DType::kFloat16>(halves.q[columns], q[2 * n], q[2 * n + 1], k[2 * n + columns]);
        ptx::mma_m16n8k8<DType::kFloat16>(halves.k[columns], k[2 * n], k[2 * n + 1], k[2 * n + columns]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int n = i / 4, c = i % 4, row = warp.group() + c / 2 * 8, column = 8 * n + 2 * warp.quad() + c % 2;
    const bool same_group = ((row ^ column) & ~(2 * kHalf - 1)) == 0;
    if (deep[c / 2] && same_group && (row & kHalf) && !(column & kHalf)) {
      blocks.q[n][c] = halves.q[n][c];
      blocks.k[n][c] = halves.k[n][c];
    }
  }
}

// The deep rows of the diagonal blocks by halving; the others stay zero. Column i of row i has no decay.
template <class Config>
__device__ __forceinline__ void add_deep_rows(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                              const float (&L)[2 * Config::kSteps][4], const bool (&deep)[2],
                                              KdaDiagonalBlocks& blocks) {
  add_half_products<Config, 8>(memory, warp, scales, L, deep, blocks);
  add_half_products<Config, 4>(memory, warp, scales, L, deep, blocks);
  add_half_products<Config, 2>(memory, warp, scales, L, deep, blocks);
  add_half_products<Config, 1>(memory, warp, scales, L, deep, blocks);
  float plain[2][4] = {};
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t k[4], q[4];
    ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
    ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[i] = scaled_pair(k[i], scales.k_in[i % 2], scales.k_in[i % 2]);
      q[i] = scaled_pair(q[i], scales.q_in[i % 2], scales.q_in[i % 2]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ptx::mma_m16n8k8<DType::kFloat16>(plain[0], q[2 * n], q[2 * n + 1], k[2 * n]);
      ptx::mma_m16n8k8<DType::kFloat16>(plain[1], q[2 * n], q[2 * n + 1], k[2 * n + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool on_diagonal = warp.group() == 2 * warp.quad() + i % 2;
    if (deep[i / 2] && on_diagonal) blocks.q[i / 2][i] = plain[i / 2][i];
  }
}

}  // namespace warpgrad::cuda::sm90
