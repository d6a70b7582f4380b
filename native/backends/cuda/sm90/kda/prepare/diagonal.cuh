#pragma once

// The 16 x 16 diagonal blocks of Aqk and N, and how they are found where dividing by the decay from the block's start
// would overflow.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/row_scales.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mma.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// Eight keys of the warp's rows times the decay from the block's start, or for k_minus divided by it: float32, in the
// order of a left operand of tf32, x of both rows and then y.
struct KdaDiagonalFactors {
  uint32_t q_plus[4], k_plus[4], k_minus[4];

  __device__ __forceinline__ void set_q(int row, float x, float y) {
    q_plus[row] = __float_as_uint(x);
    q_plus[2 + row] = __float_as_uint(y);
  }
  __device__ __forceinline__ void set_k(int row, float plus_x, float plus_y, float minus_x, float minus_y) {
    k_plus[row] = __float_as_uint(plus_x);
    k_plus[2 + row] = __float_as_uint(plus_y);
    k_minus[row] = __float_as_uint(minus_x);
    k_minus[2 + row] = __float_as_uint(minus_y);
  }
};

// Accumulators of a diagonal block: [n][..], columns 8 n to 8 n + 7.
struct KdaDiagonalBlocks {
  float q[2][4] = {};  // Aqk
  float k[2][4] = {};  // N

  __device__ __forceinline__ void add(const KdaDiagonalFactors& factors) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      ptx::mma_m16n8k8_tf32(q[n], factors.q_plus, factors.k_minus[n], factors.k_minus[2 + n]);
      ptx::mma_m16n8k8_tf32(k[n], factors.k_plus, factors.k_minus[n], factors.k_minus[2 + n]);
    }
  }
  // 16 keys of q and of k, both as left operands of float16, the latter as the right one too.
  __device__ __forceinline__ void add(const uint32_t (&q_keys)[4], const uint32_t (&k_keys)[4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        ptx::mma_m16n8k8<DType::kFloat16>(q[n], q_keys[i], q_keys[i + 1], k_keys[i + n]);
        ptx::mma_m16n8k8<DType::kFloat16>(k[n], k_keys[i], k_keys[i + 1], k_keys[i + n]);
      }
    }
  }
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

// Calls visit(step, q, k) with the warp's rows of q and k, 16 keys a step, one after the other: else ptxas begins with
// later steps, for which registers are too scarce.
template <class Config, class Visit>
__device__ __forceinline__ void for_each_step(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp, Visit visit) {
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    ptx::bar_warp_sync();
    uint32_t q[4], k[4];
    ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
    ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
    visit(step, q, k);
  }
}

// Two bfloat16 times factors, as float16.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float x, float y) {
  const float2 values = ptx::widen_pair<DType::kBFloat16>(pair);
  return ptx::cvt_pair<DType::kFloat16>(values.x * x, values.y * y);
}

// Adds the second half x first half of groups of 2 `half` rows, with the last row of the first half as reference.
template <class Config>
__device__ __forceinline__ void add_half_products(const KdaPrepareMemory<Config>& memory,
                                                  const KdaPrepareWarp<Config>& warp,
                                                  const KdaRowScales<Config>& scales,
                                                  const float (&L)[2 * Config::kSteps][4], const bool (&deep)[2],
                                                  int half, KdaDiagonalBlocks& blocks) {
  const bool across = half == 8;  // the reference of rows 8 to 15 is row 7; else each 8 rows have their own
  const uint32_t reference = across ? 7 : (warp.group() & ~(2 * half - 1)) + half - 1;
  const uint32_t source = 4 * reference + warp.quad();
  KdaDiagonalBlocks halves;
  for_each_step(memory, warp, [&](int step, uint32_t (&q)[4], uint32_t (&k)[4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float (&l)[4] = L[2 * step + n];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float reference_x = __shfl_sync(~0u, across ? l[0] : l[2 * i], source);
        const float reference_y = __shfl_sync(~0u, across ? l[1] : l[2 * i + 1], source);
        const float decay_x = ptx::ex2_approx(-fabsf(l[2 * i] - reference_x));
        const float decay_y = ptx::ex2_approx(-fabsf(l[2 * i + 1] - reference_y));
        const float k_in = scales.k_in[i], q_in = scales.q_in[i];
        k[2 * n + i] = scaled_pair(k[2 * n + i], k_in * decay_x, k_in * decay_y);
        q[2 * n + i] = scaled_pair(q[2 * n + i], q_in * decay_x, q_in * decay_y);
      }
    }
    halves.add(q, k);
  });
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int n = i / 4, c = i % 4, row = warp.group() + c / 2 * 8, column = 8 * n + 2 * warp.quad() + c % 2;
    const bool same_group = ((row ^ column) & ~(2 * half - 1)) == 0;
    if (deep[c / 2] && same_group && (row & half) && !(column & half)) {
      blocks.q[n][c] = halves.q[n][c];
      blocks.k[n][c] = halves.k[n][c];
    }
  }
}

// The deep rows' own column, which has no decay.
template <class Config>
__device__ __forceinline__ void add_undecayed(const KdaPrepareMemory<Config>& memory,
                                              const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                              const bool (&deep)[2], KdaDiagonalBlocks& blocks) {
  KdaDiagonalBlocks plain;
  for_each_step(memory, warp, [&](int, uint32_t (&q)[4], uint32_t (&k)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k[i] = scaled_pair(k[i], scales.k_in[i % 2], scales.k_in[i % 2]);
      q[i] = scaled_pair(q[i], scales.q_in[i % 2], scales.q_in[i % 2]);
    }
    plain.add(q, k);
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool on_diagonal = warp.group() == 2 * warp.quad() + i % 2;
    if (deep[i / 2] && on_diagonal) blocks.q[i / 2][i] = plain.q[i / 2][i];
  }
}

// The rows that are not deep, with the same arithmetic as where none is.
template <class Config>
__device__ __forceinline__ void add_other_rows(const KdaPrepareMemory<Config>& memory,
                                               const KdaPrepareWarp<Config>& warp, const KdaRowScales<Config>& scales,
                                               const float (&L)[2 * Config::kSteps][4], const bool (&deep)[2],
                                               KdaDiagonalBlocks& blocks) {
  for_each_step(memory, warp, [&](int step, uint32_t (&q)[4], uint32_t (&k)[4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      KdaDiagonalFactors factors;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float l_x = deep[i] ? 0 : L[2 * step + n][2 * i], l_y = deep[i] ? 0 : L[2 * step + n][2 * i + 1];
        const float decay_x = ptx::ex2_approx(l_x), decay_y = ptx::ex2_approx(l_y);
        const float k_in = deep[i] ? 0 : scales.k_in[i], q_in = deep[i] ? 0 : scales.q_in[i];
        const float2 k_pair = ptx::widen_pair<DType::kBFloat16>(k[2 * n + i]);
        const float2 q_pair = ptx::widen_pair<DType::kBFloat16>(q[2 * n + i]);
        const float k_x = k_pair.x * k_in, k_y = k_pair.y * k_in;
        factors.set_q(i, q_pair.x * q_in * decay_x, q_pair.y * q_in * decay_y);
        factors.set_k(i, k_x * decay_x, k_y * decay_y, k_x * ptx::ex2_approx(-l_x), k_y * ptx::ex2_approx(-l_y));
      }
      blocks.add(factors);
    }
  });
}

// The diagonal blocks where some rows are deep.
template <class Config>
__device__ __forceinline__ void multiply_deep_diagonal(const KdaPrepareMemory<Config>& memory, uint32_t block,
                                                       const KdaRowScales<Config>& scales,
                                                       const float (&L)[2 * Config::kSteps][4], bool (&deep)[2],
                                                       KdaDiagonalBlocks& blocks) {
  using Warp = KdaPrepareWarp<Config>;
  find_deep_rows<Config>(L, deep);
#pragma unroll 1
  for (int half = 8; half > 0; half /= 2) {
    add_half_products(memory, Warp::here(block), scales, L, deep, half, blocks);
  }
  add_undecayed(memory, Warp::here(block), scales, deep, blocks);
  add_other_rows(memory, Warp::here(block), scales, L, deep, blocks);
}

}  // namespace warpgrad::cuda::sm90
