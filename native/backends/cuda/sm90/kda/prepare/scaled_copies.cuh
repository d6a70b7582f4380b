#pragma once

// Kr and Qd, the operands of the off-diagonal blocks, and the diagonal blocks.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/diagonal.cuh"
#include "backends/cuda/sm90/kda/prepare/row_scales.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"

namespace warpgrad::cuda::sm90 {

// q and k of the warp's rows times the decay from the start of its block, float16 left operands.
template <class Config>
struct KdaQueryFragments {
  uint32_t q[Config::kSteps][4], k[Config::kSteps][4];

  // Times a factor a key, of a table.
  __device__ __forceinline__ static void scale(uint32_t (&x)[4], const uint32_t (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = ptx::mul_f16x2(x[i], factors[i / 2]);
  }
  __device__ __forceinline__ static void load_factors(const KdaPrepareWarp<Config>& warp, uint32_t table, int step,
                                                      uint32_t (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 values = ptx::ld_shared_v2(table + (16 * step + 8 * n + 2 * warp.quad()) * 4);
      factors[n] = ptx::cvt_pair<DType::kFloat16>(values.x, values.y);
    }
  }
};

// Where the decays come from that take a block's k from its start (its end, when rows of it are deep) to the references
// of later row blocks: row 31 for block 1 and, from blocks 2 and 3, for 0; row 47 for block 2; row 15 from block 1 for
// 0.
template <class Config>
__device__ __forceinline__ uint32_t key_copy_decay(const KdaPrepareMemory<Config>& memory, uint32_t block, bool deep) {
  if (deep) return block == 0 ? memory.block_1() : memory.to_start(0);
  return block == 0 ? memory.to_start(2) : block == 1 ? memory.block_1() : memory.block_2();
}

// k of one step of 16 keys, float32, times the factors of a table, as a float16 copy.
template <class Config>
__device__ __forceinline__ void store_key_copy(const KdaPrepareWarp<Config>& warp, const float2 (&k)[4], uint32_t table,
                                               int step, uint32_t address) {
  uint32_t copy[4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 decay = ptx::ld_shared_v2(table + (16 * step + 8 * n + 2 * warp.quad()) * 4);
#pragma unroll
    for (int m = 2 * n; m < 2 * n + 2; ++m) {
      copy[m] = ptx::cvt_pair<DType::kFloat16>(k[m].x * decay.x, k[m].y * decay.y);
    }
  }
  ptx::stmatrix_x4(address, copy[0], copy[1], copy[2], copy[3]);
}

// Qd over q and Kr over k; k for the off-diagonal blocks over g: the copies of blocks 0, 1, 2 at their own rows, and
// the second one of block 0 at those of block 3. The diagonal blocks, of the rows that are not deep. The same code for
// warps with deep rows and without, whose k is taken from its row to the block's end and back to its start: two would
// not stay in the instruction cache.
template <class Config>
__device__ __forceinline__ void make_scaled_copies(const KdaPrepareMemory<Config>& memory,
                                                   const KdaPrepareWarp<Config>& warp,
                                                   const KdaRowScales<Config>& scales,
                                                   const float (&L)[2 * Config::kSteps][4], bool deep,
                                                   KdaDiagonalBlocks& blocks, KdaQueryFragments<Config>& queries) {
  constexpr auto kBf16 = DType::kBFloat16;
  constexpr auto kFp16 = DType::kFloat16;
  const uint32_t block = warp.block;
  const uint32_t to_start = memory.to_start(block), to_end = memory.from_start(deep ? block + 1 : block);
  const uint32_t copy_decay = key_copy_decay(memory, block, deep);
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    // One step after the other: else ptxas begins with later ones, for which registers are too scarce.
    ptx::bar_warp_sync();
    uint32_t q[4], k[4], qd[4], kr[4];
    ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
    ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
    float2 source[4], k_minus[4];
    KdaDiagonalFactors factors[2];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int n = m / 2, i = m % 2;
      const float2 start = ptx::ld_shared_v2(to_start + (16 * step + 8 * n + 2 * warp.quad()) * 4);
      const float l_x = L[2 * step + n][2 * i], l_y = L[2 * step + n][2 * i + 1];
      const float decay_x = ptx::ex2_approx(l_x), decay_y = ptx::ex2_approx(l_y);
      const float2 k_pair = ptx::widen_pair<kBf16>(k[m]), q_pair = ptx::widen_pair<kBf16>(q[m]);
      source[m] = {k_pair.x * scales.source_in[i], k_pair.y * scales.source_in[i]};
      const float k_plus_x = k_pair.x * scales.k_in[i] * decay_x, k_plus_y = k_pair.y * scales.k_in[i] * decay_y;
      const float q_plus_x = q_pair.x * scales.q_in[i] * decay_x, q_plus_y = q_pair.y * scales.q_in[i] * decay_y;
      k_minus[m] = {source[m].x * ptx::ex2_approx(-l_x), source[m].y * ptx::ex2_approx(-l_y)};

      queries.q[step][m] = ptx::cvt_pair<kFp16>(q_plus_x, q_plus_y);
      queries.k[step][m] = ptx::cvt_pair<kFp16>(k_plus_x, k_plus_y);
      qd[m] =
          ptx::cvt_pair<kBf16>(scales.times_q_out(q_plus_x * start.x, i), scales.times_q_out(q_plus_y * start.y, i));
      factors[n].set_q(i, q_plus_x, q_plus_y);
      // Infinite for deep rows, which no other row's pairs have a part of.
      factors[n].set_k(i, k_plus_x, k_plus_y, k_minus[m].x, k_minus[m].y);
      if (i == 1) blocks.add(factors[n]);
    }
    if (deep) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float (&l)[4] = L[2 * step + m / 2];
        const float l_end_x = __shfl_sync(~0u, l[2], 28 + warp.quad());  // of the last row
        const float l_end_y = __shfl_sync(~0u, l[3], 28 + warp.quad());
        k_minus[m] = {source[m].x * ptx::ex2_approx(l_end_x - l[m % 2 * 2]),
                      source[m].y * ptx::ex2_approx(l_end_y - l[m % 2 * 2 + 1])};
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float2 end = ptx::ld_shared_v2(to_end + (16 * step + m / 2 * 8 + 2 * warp.quad()) * 4);
      kr[m] = ptx::cvt_pair<kBf16>(scales.times_source_out(k_minus[m].x * end.x, m % 2),
                                   scales.times_source_out(k_minus[m].y * end.y, m % 2));
    }
    ptx::stmatrix_x4(warp.fragment(memory.qd(), step), qd[0], qd[1], qd[2], qd[3]);
    ptx::stmatrix_x4(warp.fragment(memory.kr(), step), kr[0], kr[1], kr[2], kr[3]);
    const uint32_t copy = warp.fragment(memory.kd(), step);
    if (block < 3) store_key_copy(warp, k_minus, copy_decay, step, copy);
    if (block == 0) store_key_copy(warp, k_minus, memory.to_start(deep ? 0 : 1), step, copy + 48 * kPanelRowBytes);
  }
}

}  // namespace warpgrad::cuda::sm90
