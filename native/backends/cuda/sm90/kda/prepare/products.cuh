#pragma once

// W = T (beta Kd) and U0 = T (beta v), and what else of the record is written at the end.

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/inverse.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"

namespace warpgrad::cuda::sm90 {

// The warp's rows of T, as fragments of the four column blocks.
template <class Config>
__device__ __forceinline__ void load_t_rows(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                            uint32_t (&t)[4][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    t[j][0] = t[j][1] = t[j][2] = t[j][3] = 0;
    if (j <= warp.block) ptx::ldmatrix_x4(warp.square(memory.aqk(), warp.block, j), t[j]);
  }
}

// T diag(beta), T^ diag(beta_in) without the norm.
template <class Config>
__device__ __forceinline__ void multiply_by_beta(const KdaPrepareMemory<Config>& memory,
                                                 const KdaPrepareWarp<Config>& warp, uint32_t (&t)[4][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int first = 16 * j + 8 * n;
      const float2 beta = ptx::ld_shared_v2(memory.beta() + (first + 2 * warp.quad()) * 4);
      const float2 beta_in = KdaColumnScales<Config>(memory, warp, first).beta_in(beta);
      const uint32_t factors = ptx::cvt_pair<DType::kFloat16>(beta_in.x, beta_in.y);
      t[j][2 * n] = ptx::mul_f16x2(t[j][2 * n], factors);
      t[j][2 * n + 1] = ptx::mul_f16x2(t[j][2 * n + 1], factors);
    }
  }
}

// W of the warp's rows, as bfloat16 fragments.
template <class Config>
__device__ __forceinline__ void multiply_w(const KdaPrepareMemory<Config>& memory, const KdaRowScales<Config>& scales,
                                           uint32_t (&t_beta)[4][4], uint32_t (&w)[Config::kSteps][4]) {
  float accum[Config::kKeys / 2];
  const uint64_t keys = Config::KeyTile::inner_rows_descriptor(memory.w());
#pragma unroll
  for (int j = 0; j < 4; ++j) ptx::pin_registers(t_beta[j]);
  ptx::wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    ptx::Wgmma<DType::kFloat16, Config::kKeys>::template rs<1>(accum, t_beta[j],
                                                               keys + Config::KeyTile::inner_rows_step(j), j > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::pin_registers(accum);
#pragma unroll
  for (int i = 0; i < Config::kKeys / 4; ++i) {
    w[i / 4][i % 4] = ptx::cvt_pair<DType::kBFloat16>(scales.times_t_out(accum[2 * i], i % 2),
                                                      scales.times_t_out(accum[2 * i + 1], i % 2));
  }
}

// T diag(beta), T^ diag(beta_in / k_out) without the norm, as the sum of two bfloat16 terms.
struct KdaTwoTerms {
  uint32_t high[4][4], low[4][4];
};

template <class Config>
__device__ __forceinline__ void split(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                      const uint32_t (&t_beta)[4][4], KdaTwoTerms& terms) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const KdaColumnScales<Config> columns(memory, warp, 16 * j + m / 2 * 8);
      const float2 values = columns.over_k_out(ptx::widen_pair<DType::kFloat16>(t_beta[j][m]));
      terms.high[j][m] = ptx::cvt_pair<DType::kBFloat16>(values.x, values.y);
      const float2 high = ptx::widen_pair<DType::kBFloat16>(terms.high[j][m]);
      terms.low[j][m] = ptx::cvt_pair<DType::kBFloat16>(values.x - high.x, values.y - high.y);
    }
    ptx::pin_registers(terms.high[j]);
    ptx::pin_registers(terms.low[j]);
  }
}

// 64 columns of U0 of the warp's rows, as bfloat16 fragments.
template <class Config>
__device__ __forceinline__ void multiply_u0(uint32_t v_panel, const KdaRowScales<Config>& scales,
                                            const KdaTwoTerms& terms, uint32_t (&u0)[4][4]) {
  using Product = ptx::Wgmma<DType::kBFloat16, kPanelColumns>;
  using Panel = typename Config::Panel;
  float accum[kPanelColumns / 2];
  const uint64_t v = Panel::inner_rows_descriptor(v_panel);
  ptx::wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    Product::template rs<1>(accum, terms.high[j], v + Panel::inner_rows_step(j), j > 0);
    Product::template rs<1>(accum, terms.low[j], v + Panel::inner_rows_step(j), 1);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::pin_registers(accum);
#pragma unroll
  for (int i = 0; i < kPanelColumns / 4; ++i) {
    u0[i / 4][i % 4] = ptx::cvt_pair<DType::kBFloat16>(scales.times_t_out(accum[2 * i], i % 2),
                                                       scales.times_t_out(accum[2 * i + 1], i % 2));
  }
}

// The warp's rows of a tile.
template <class Config, int kSteps>
__device__ __forceinline__ void store_rows(const KdaPrepareWarp<Config>& warp, uint32_t tile,
                                           const uint32_t (&x)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    ptx::stmatrix_x4(warp.fragment(tile, step), x[step][0], x[step][1], x[step][2], x[step][3]);
  }
}

// The warp's rows of Aqk, over those of T.
template <class Config>
__device__ __forceinline__ void store_aqk(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                          const KdaAqkFragments& aqk) {
  const uint32_t block = warp.block;
  const auto store = [&](int j, const uint32_t (&x)[4]) {
    ptx::stmatrix_x4(warp.square(memory.aqk(), block, j), x[0], x[1], x[2], x[3]);
  };
  store(block, aqk.diagonal);
  if (block % 2 == 1) store(block - 1, aqk.previous);
  if (block >= 2) {
    store(0, aqk.column_0);
    store(1, aqk.column_1);
  }
#pragma unroll
  for (int j = 1; j < 4; ++j) {
    if (j > block) store(j, {0, 0, 0, 0});
  }
}

// The warp's rows of T = t_out T^ / t_out, as bfloat16.
template <class Config>
__device__ __forceinline__ void store_t(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                        const KdaRowScales<Config>& scales, uint32_t tile) {
  uint32_t t[4][4];
  load_t_rows(memory, warp, t);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const KdaColumnScales<Config> columns(memory, warp, 16 * j + m / 2 * 8);
      const float2 values = columns.over_t_out(ptx::widen_pair<DType::kFloat16>(t[j][m]));
      t[j][m] =
          ptx::cvt_pair<DType::kBFloat16>(scales.times_t_out(values.x, m % 2), scales.times_t_out(values.y, m % 2));
    }
    ptx::stmatrix_x4(warp.square(tile, warp.block, j), t[j][0], t[j][1], t[j][2], t[j][3]);
  }
}

}  // namespace warpgrad::cuda::sm90
