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

// Two bfloat16 times a factor, as float16.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float factor) {
  const float2 values = ptx::widen_pair<DType::kBFloat16>(pair);
  return ptx::cvt_pair<DType::kFloat16>(values.x * factor, values.y * factor);
}

// Decays of two keys, float16 pairs, that rows are multiplied by: [level t][rows group(), + 8]. At level t a row of the
// second half of a group of 2 * 2^t rows meets one of the first half, with the last row of the first half as reference:
// the former has decayed since, the latter until then.
struct KdaLevelDecays {
  static constexpr int kLevels = 4;
  uint32_t pairs[kLevels][2];

  // From the decays of single tokens, which neighbours exchange: no factor is above 1, however deep the rows.
  template <class Config>
  __device__ __forceinline__ void make(const KdaPrepareWarp<Config>& warp, const float (&l)[4]) {
    constexpr uint32_t kOne = 0x3c003c00u;
    const uint32_t group = warp.group();
    float before[4], decay[4];  // l of the row before; the row's own decay
#pragma unroll
    for (int i = 0; i < 4; ++i) before[i] = __shfl_sync(~0u, l[i], warp.lane_idx + 28);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Row 7 is before row 8; the decay of row 0 is of no use.
      const float before_first = i < 2 ? l[i] : before[i - 2];
      decay[i] = ptx::ex2_approx(l[i] - (group == 0 ? before_first : before[i]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t all = ptx::cvt_pair<DType::kFloat16>(decay[2 * i], decay[2 * i + 1]);  // of 1, 2, 4 rows
      uint32_t since = all, until = kOne;  // the start of that many rows, their end
#pragma unroll
      for (int t = 0; t < 3; ++t) {
        const bool second = group >> t & 1;
        pairs[t][i] = second ? since : until;
        const uint32_t other = __shfl_xor_sync(~0u, all, 4 << t);
        since = ptx::mul_f16x2(since, second ? other : kOne);
        until = ptx::mul_f16x2(until, second ? kOne : other);
        all = ptx::mul_f16x2(all, other);
      }
      pairs[3][i] = i == 0 ? until : since;
    }
  }
};

// Products of 8 x 8 rows, [of q, of k below][two columns of a lane]: 8 rows of q, and below them the same of k, are the
// left operand.
struct KdaHalfProducts {
  float sums[4] = {};

  // += the rows i of q and k times the rows j of `right`, 16 keys, float16 [8 keys][8 rows].
  __device__ __forceinline__ void add(const uint32_t (&q)[2][2], const uint32_t (&k)[2][2], int i,
                                      const uint32_t (&right)[2][2], int j) {
    const uint32_t left[4] = {q[0][i], k[0][i], q[1][i], k[1][i]};
    ptx::mma_m16n8k16<DType::kFloat16>(sums, left, right[0][j], right[1][j]);
  }
};

// The deep rows of the diagonal blocks, by halving.
template <class Config>
class KdaDeepRows {
 public:
  __device__ __forceinline__ void multiply(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                           const KdaRowScales<Config>& scales,
                                           const float (&L)[2 * Config::kSteps][4]) {
    KdaHalfProducts within[3][2], own[2];  // of rows and columns of the same 8, at a level and without decay
    for_each_step(memory, warp, [&](int step, const uint32_t (&q)[4], const uint32_t (&k)[4]) {
      KdaLevelDecays decays[2];
      uint32_t q16[2][2], k16[2][2];  // [8 keys][8 rows]
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        decays[n].make(warp, L[2 * step + n]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          q16[n][i] = scaled_pair(q[2 * n + i], scales.q_in[i]);
          k16[n][i] = scaled_pair(k[2 * n + i], scales.k_in[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) own[i].add(q16, k16, i, k16, i);
#pragma unroll
      for (int t = 0; t < KdaLevelDecays::kLevels; ++t) {
        uint32_t q_decayed[2][2], k_decayed[2][2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            q_decayed[n][i] = ptx::mul_f16x2(q16[n][i], decays[n].pairs[t][i]);
            k_decayed[n][i] = ptx::mul_f16x2(k16[n][i], decays[n].pairs[t][i]);
          }
        }
        if (t == 3) {
          across_.add(q_decayed, k_decayed, 1, k_decayed, 0);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) within[t][i].add(q_decayed, k_decayed, i, k_decayed, i);
        }
      }
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint32_t parted = warp.group() ^ (2 * warp.quad() + c % 2);
        const float of_pair = parted & 4   ? within[2][i].sums[c]
                              : parted & 2 ? within[1][i].sums[c]
                                           : within[0][i].sums[c];
        within_[i].sums[c] = parted == 0 ? own[i].sums[c] : of_pair;
      }
    }
  }

  __device__ __forceinline__ void replace(const bool (&deep)[2], KdaDiagonalBlocks& blocks) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (deep[i]) put(within_[i], blocks.q[i] + 2 * i, blocks.k[i] + 2 * i);
    }
    if (deep[1]) put(across_, blocks.q[0] + 2, blocks.k[0] + 2);
  }

 private:
  static __device__ __forceinline__ void put(const KdaHalfProducts& products, float* q, float* k) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      q[e] = products.sums[e];
      k[e] = products.sums[2 + e];
    }
  }

  KdaHalfProducts within_[2];  // rows 0 to 7, 8 to 15, with columns of the same
  KdaHalfProducts across_;     // rows 8 to 15 with columns 0 to 7
};

}  // namespace warpgrad::cuda::sm90
