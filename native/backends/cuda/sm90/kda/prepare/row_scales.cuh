#pragma once

// The factors that bring the rows of q and k to a length near 1.

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/memory.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mma.cuh"

namespace warpgrad::cuda::sm90 {

constexpr float kKdaNormEpsilon = 1e-6f;

// Of the rows group() and group() + 8. Products are taken of `in` times the row, so that float16 can hold them: of k
// with k_in where it is the receiving side, with source_in, which beta is in, where it is the source. With the L2 norm
// `out` is 1; without it k_in and q_in are powers of two, and results are multiplied by `out` to make up for it:
//   k = k_out k^,  q = q_out q^ (the scale is in q_in with the norm, in q_out without),
//   beta k = source_out (beta_in k^),  beta_in = beta k_out / source_out,  source_out = p / k_out,
//   A^ = p N^ beta_in,  T^ = (I + A^)^-1,  T = T^ source_out / source_out  (factor of the row, matrix, of the column,
//   over that of the row).
// Short keys have a p near k_out^2: float16 is to hold beta_in k^, and beta k_out^2 would be too small for it.
template <class Config>
struct KdaRowScales {
  float q_in[2], k_in[2], source_in[2];
  float q_out[2], k_out[2], source_out[2];

  __device__ __forceinline__ float times_q_out(float x, int row) const {
    return Config::kQkL2Norm ? x : x * q_out[row];
  }
  __device__ __forceinline__ float times_k_out(float x, int row) const {
    return Config::kQkL2Norm ? x : x * k_out[row];
  }
  __device__ __forceinline__ float times_source_out(float x, int row) const {
    return Config::kQkL2Norm ? x : x * source_out[row];
  }
  __device__ __forceinline__ float over_source_out(float x, int row) const {
    return Config::kQkL2Norm ? x : x * ptx::rcp_approx(source_out[row]);
  }
  __device__ __forceinline__ float times_p(float x, int row) const {
    return Config::kQkL2Norm ? x : x * (k_out[row] * source_out[row]);
  }
};

// p, a power of two: k_out^2, or beta k_out^2 if that is more, inside of limits. The lower one is for T between keys of
// very different lengths.
__device__ __forceinline__ float key_balance(float k_out, float beta) {
  const float large_beta = __uint_as_float(__float_as_uint(fmaxf(fabsf(beta), 1)) & 0x7f800000u);
  return fminf(fmaxf(k_out * k_out * large_beta, 0x1p-20f), 1.0f);
}

// Sums of squares of the warp's rows: the diagonal of X X^T, of which both operands are the same registers.
template <class Config>
struct KdaSquares {
  float low[4] = {}, high[4] = {};  // rows 0 to 7, 8 to 15

  __device__ __forceinline__ void add(const uint32_t (&x)[4]) {
    ptx::mma_m16n8k8<DType::kBFloat16>(low, x[0], x[1], x[0]);
    ptx::mma_m16n8k8<DType::kBFloat16>(high, x[0], x[1], x[1]);
    ptx::mma_m16n8k8<DType::kBFloat16>(low, x[2], x[3], x[2]);
    ptx::mma_m16n8k8<DType::kBFloat16>(high, x[2], x[3], x[3]);
  }
  __device__ __forceinline__ void diagonal(const KdaPrepareWarp<Config>& warp, float (&squares)[2]) const {
    const uint32_t source = 4 * warp.group() + warp.group() / 2;
    const bool odd = warp.group() % 2;
    squares[0] = __shfl_sync(~0u, odd ? low[1] : low[0], source);
    squares[1] = __shfl_sync(~0u, odd ? high[3] : high[2], source);
  }
};

// 1 / |x| of rows whose sum of squares is beyond float32.
template <class Config>
__device__ __forceinline__ void invert_large_norms(const KdaPrepareWarp<Config>& warp, uint32_t tile,
                                                   const float (&squares)[2], float (&inverse)[2]) {
  constexpr float kDown = 0x1p-64f;
  float sums[2] = {0, 0};
#pragma unroll 1
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t x[4];
    ptx::ldmatrix_x4(warp.fragment(tile, step), x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = ptx::widen_pair<DType::kBFloat16>(x[i]);
      const float first = values.x * kDown, second = values.y * kDown;
      sums[i % 2] += first * first + second * second;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] += __shfl_xor_sync(~0u, sums[i], 1);
    sums[i] += __shfl_xor_sync(~0u, sums[i], 2);
    if (squares[i] == INFINITY) inverse[i] = ptx::rsqrt_approx(sums[i]) * kDown;
  }
}

template <class Config>
__device__ __forceinline__ void invert_norms(const KdaPrepareWarp<Config>& warp, uint32_t tile,
                                             const float (&squares)[2], float (&inverse)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) inverse[i] = ptx::rsqrt_approx(squares[i] + kKdaNormEpsilon);
  if (__any_sync(~0u, squares[0] == INFINITY || squares[1] == INFINITY)) {
    invert_large_norms(warp, tile, squares, inverse);
  }
}

// A power of two near 1 / |x|.
__device__ __forceinline__ float inverse_power_of_two(float squares) {
  const float inside = fminf(fmaxf(squares, 0x1p-100f), 0x1p100f);
  return __uint_as_float(__float_as_uint(ptx::rsqrt_approx(inside)) & 0x7f800000u);
}

// The record gets the norms; without them, beta_in and source_out stand there until finish_norms().
template <class Config>
__device__ __forceinline__ KdaRowScales<Config> scale_rows(const KdaPrepareMemory<Config>& memory,
                                                           const KdaPrepareWarp<Config>& warp, float scale) {
  KdaSquares<Config> k_squares, q_squares;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    uint32_t k[4], q[4];
    ptx::ldmatrix_x4(warp.fragment(memory.kr(), step), k);
    ptx::ldmatrix_x4(warp.fragment(memory.qd(), step), q);
    k_squares.add(k);
    q_squares.add(q);
  }
  float k_sums[2], q_sums[2];
  k_squares.diagonal(warp, k_sums);
  q_squares.diagonal(warp, q_sums);

  KdaRowScales<Config> scales;
  const uint32_t row = (16 * warp.block + warp.group()) * 4;
  if constexpr (Config::kQkL2Norm) {
    invert_norms(warp, memory.kr(), k_sums, scales.k_in);
    invert_norms(warp, memory.qd(), q_sums, scales.q_in);
    if (warp.quad() == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::st_shared(memory.q_norm() + row + 32 * i, scales.q_in[i]);
        ptx::st_shared(memory.k_norm() + row + 32 * i, scales.k_in[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales.q_in[i] *= scale;
      scales.source_in[i] = scales.k_in[i] * (ptx::ld_shared(memory.beta() + row + 32 * i) / Config::kOverSource);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales.k_in[i] = inverse_power_of_two(k_sums[i]);
      scales.q_in[i] = inverse_power_of_two(q_sums[i]);
      scales.k_out[i] = 1 / scales.k_in[i];
      scales.q_out[i] = scale / scales.q_in[i];
      const float beta = ptx::ld_shared(memory.beta() + row + 32 * i);
      scales.source_out[i] = key_balance(scales.k_out[i], beta) * scales.k_in[i];
      const float beta_in = beta * scales.k_out[i] / scales.source_out[i];
      scales.source_in[i] = scales.k_in[i] * beta_in;
      if (warp.quad() == 0) {
        ptx::st_shared(memory.beta_in() + row + 32 * i, beta_in);
        ptx::st_shared(memory.source_out() + row + 32 * i, scales.source_out[i]);
      }
    }
  }
  return scales;
}

// Of the source tokens 2 quad() and the next, + first.
template <class Config>
__device__ __forceinline__ float2 load_source_out(const KdaPrepareMemory<Config>& memory,
                                                  const KdaPrepareWarp<Config>& warp, int first) {
  if constexpr (Config::kQkL2Norm) return {1, 1};
  return ptx::ld_shared_v2(memory.source_out() + (first + 2 * warp.quad()) * 4);
}
template <class Config>
__device__ __forceinline__ float2 load_beta_in(const KdaPrepareMemory<Config>& memory,
                                               const KdaPrepareWarp<Config>& warp, int first) {
  const uint32_t table = Config::kQkL2Norm ? memory.beta() : memory.beta_in();
  return ptx::ld_shared_v2(table + (first + 2 * warp.quad()) * 4);
}

// When nobody reads beta_in and source_out any more.
template <class Config>
__device__ __forceinline__ void finish_norms(const KdaPrepareMemory<Config>& memory, int thread_idx) {
  constexpr int kFloats = 2 * kKdaChunkRows;
  static_assert(kFloats == Config::kThreads);
  ptx::st_shared(memory.q_norm() + thread_idx * 4, 1);
}

}  // namespace warpgrad::cuda::sm90
