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

// Two bfloat16 times a factor, as float16.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float factor) {
  const float2 values = ptx::widen_pair<DType::kBFloat16>(pair);
  return ptx::cvt_pair<DType::kFloat16>(values.x * factor, values.y * factor);
}

// Decays of single tokens, two keys a pair of float16: of the rows group() and group() + 8.
template <class Config>
__device__ __forceinline__ void find_token_decays(const KdaPrepareWarp<Config>& warp, const float (&l)[4],
                                                  uint32_t* pairs) {
  float before[4], decay[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) before[i] = __shfl_sync(~0u, l[i], warp.lane_idx + 28);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Row 7 is before row 8; the decay of row 0 is of no use.
    const float before_first = i < 2 ? l[i] : before[i - 2];
    decay[i] = ptx::ex2_approx(l[i] - (warp.group() == 0 ? before_first : before[i]));
  }
  pairs[0] = ptx::cvt_pair<DType::kFloat16>(decay[0], decay[1]);
  pairs[1] = ptx::cvt_pair<DType::kFloat16>(decay[2], decay[3]);
}

// What rows of 8 are multiplied by: at level t a row of the second half of a group of 2 * 2^t rows meets one of the
// first half, with the last row of the first half as reference; the former has decayed since, the latter until then. No
// factor is above 1, however deep the rows. Level 3 is that of the rows 0 to 7 and 8 to 15.
struct KdaLevelDecays {
  uint32_t pairs[4];

  // From the decays of single tokens, which neighbours exchange.
  __device__ __forceinline__ KdaLevelDecays(uint32_t group, uint32_t token_decay, bool is_second_half) {
    constexpr uint32_t kOne = 0x3c003c00u;
    uint32_t all = token_decay, since = token_decay, until = kOne;  // of groups of 1, 2, 4 rows
#pragma unroll
    for (int t = 0; t < 3; ++t) {
      const bool second = group >> t & 1;
      pairs[t] = second ? since : until;
      const uint32_t other = __shfl_xor_sync(~0u, all, 4 << t);
      since = ptx::mul_f16x2(since, second ? other : kOne);
      until = ptx::mul_f16x2(until, second ? kOne : other);
      all = ptx::mul_f16x2(all, other);
    }
    pairs[3] = is_second_half ? since : until;
  }
};

// Products of 8 x 8 rows, [of q, of k below][two columns of a lane]: 8 rows of q, and below them the same of k, are the
// left operand.
struct KdaHalfProducts {
  float sums[4] = {};

  // += the rows i of q and k times the rows j of `right`, fragments of 16 keys in float16.
  __device__ __forceinline__ void add(const uint32_t (&q)[4], const uint32_t (&k)[4], int i, const uint32_t (&right)[4],
                                      int j) {
    const uint32_t left[4] = {q[i], k[i], q[2 + i], k[2 + i]};
    ptx::mma_m16n8k16<DType::kFloat16>(sums, left, right[j], right[2 + j]);
  }
};

// The deep rows of the diagonal blocks, by halving. The decays of single tokens wait in the room of g, in the same
// places: so the rest can be a loop, of which there is little in the instruction cache.
template <class Config>
class KdaDeepRows {
 public:
  __device__ __forceinline__ void multiply(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                           const KdaRowScales<Config>& scales,
                                           const float (&L)[2 * Config::kSteps][4]) {
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      uint32_t decays[4];
      find_token_decays(warp, L[2 * step], decays);
      find_token_decays(warp, L[2 * step + 1], decays + 2);
      ptx::stmatrix_x4(warp.fragment(memory.kd(), step), decays[0], decays[1], decays[2], decays[3]);
    }
    ptx::bar_warp_sync();
    KdaHalfProducts within[3][2], own[2];  // of rows and columns of the same 8, at a level and without decay
#pragma unroll 1
    for (int step = 0; step < Config::kSteps; ++step) {
      uint32_t q[4], k[4], decays[4];
      ptx::ldmatrix_x4(warp.fragment(memory.kd(), step), decays);
      ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
      ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        q[m] = scaled_pair(q[m], scales.q_in[m % 2]);
        k[m] = scaled_pair(k[m], scales.k_in[m % 2]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) own[i].add(q, k, i, k, i);
      const KdaLevelDecays levels[4] = {{warp.group(), decays[0], false},
                                        {warp.group(), decays[1], true},
                                        {warp.group(), decays[2], false},
                                        {warp.group(), decays[3], true}};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t q_decayed[4], k_decayed[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          q_decayed[m] = ptx::mul_f16x2(q[m], levels[m].pairs[t]);
          k_decayed[m] = ptx::mul_f16x2(k[m], levels[m].pairs[t]);
        }
        if (t == 3) {
          across_.add(q_decayed, k_decayed, 1, k_decayed, 0);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) within[t][i].add(q_decayed, k_decayed, i, k_decayed, i);
        }
      }
    }
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
