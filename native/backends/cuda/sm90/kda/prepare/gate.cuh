#pragma once

// The gate, and G counted from the first row of each block of 16.

#include <cmath>
#include <cstdint>

#include "backends/cuda/sm90/kda/gate_math.cuh"
#include "backends/cuda/sm90/kda/prepare/memory.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mma.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"

namespace warpgrad::cuda::sm90 {

// 2^-128 is 0, so nothing lies below; sums of these stay finite. NaN stays NaN.
__device__ __forceinline__ float clamp_log2_decay(float g) {
  return ptx::max_nan(g, -128.0f);
}

// A gate turns inputs of one key into log2 of the decay. `bias` is what its bias() made of dt_bias.
struct KdaGivenGate {
  __device__ __forceinline__ float bias(float) const { return 0; }
  template <int kElements>
  __device__ __forceinline__ void apply(float (&x)[kElements], float) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = clamp_log2_decay(x[i] * kKdaLog2E);
  }
};

struct KdaSoftplusGate {
  float minus_a;
  __device__ __forceinline__ float bias(float dt_bias) const { return dt_bias * kKdaLog2E; }
  template <int kElements>
  __device__ __forceinline__ void apply(float (&x)[kElements], float bias) const {
    float z[kElements], e[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) z[i] = fmaf(x[i], kKdaLog2E, bias);
#pragma unroll
    for (int i = 0; i < kElements; ++i) e[i] = ptx::ex2_approx(-fabsf(z[i]));
    kda_log2_softplus(z, e, x);
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = clamp_log2_decay(minus_a * x[i]);
  }
};

// A shallow one has no decay to clamp.
template <bool kShallow>
struct KdaBoundedGate {
  float a_log2, inverse_bound;  // -a log2(e), 1 / (lower_bound log2(e))
  __device__ __forceinline__ KdaBoundedGate(float a, float lower_bound)
      : a_log2(-a * kKdaLog2E), inverse_bound(1 / (lower_bound * kKdaLog2E)) {}
  __device__ __forceinline__ float bias(float dt_bias) const { return a_log2 * dt_bias; }
  template <int kElements>
  __device__ __forceinline__ void apply(float (&x)[kElements], float bias) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      x[i] = ptx::rcp_approx(ptx::ex2_approx(x[i] * a_log2 + bias) * inverse_bound + inverse_bound);
      if constexpr (!kShallow) x[i] = clamp_log2_decay(x[i]);
    }
  }
};

// What a gate makes 0 of.
template <class Gate>
constexpr float kKdaNoDecay = -INFINITY;
template <>
constexpr float kKdaNoDecay<KdaGivenGate> = 0;

// Inputs of the gate, tokens 2 quad + {0, 1, 8, 9} of the warp's rows and keys 16 step + group (+ 8), from shared
// memory
template <class Config>
struct KdaGateTile {
  static constexpr int kStepsAhead = 1;
  uint32_t tile;
  const KdaPrepareWarp<Config>& warp;

  __device__ __forceinline__ void load(int step, float (&x)[2][4]) const {
    uint32_t pairs[4];
    ptx::ldmatrix_x4_trans(warp.fragment(tile, step), pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = ptx::widen_pair<DType::kBFloat16>(pairs[i]);
      x[i / 2][i % 2 * 2] = values.x;
      x[i / 2][i % 2 * 2 + 1] = values.y;
    }
  }
};

// and from device memory, in float32.
template <class Config>
struct KdaGateRows {
  static constexpr int kStepsAhead = 3;
  const float* row[4];  // from the key `key` on
  bool inside[4];
  float outside_value;
  int key, key_dim;

  __device__ __forceinline__ KdaGateRows(const KdaPrepareParams& params, const KdaChunk& chunk, int head,
                                         const KdaPrepareWarp<Config>& warp, float outside_value)
      : outside_value(outside_value), key(warp.group()), key_dim(params.key_dim) {
    const float* first = params.g + chunk.batch * params.g_batch_stride + chunk.token * params.g_token_stride +
                         head * params.g_head_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 16 * warp.block + 2 * warp.quad() + i / 2 * 8 + i % 2;
      inside[i] = token < chunk.rows;
      row[i] = first + (inside[i] ? token : 0) * params.g_token_stride + key;
    }
  }

  __device__ __forceinline__ void load(int step, float (&x)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = 16 * step + 8 * n;
      const bool present = column + key < key_dim;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = present ? __ldg(row[i] + column) : 0;
        x[n][i] = inside[i] ? value : outside_value;
      }
    }
  }
};

// L = the cumulative sums of log2 of the decays, in the fragments of a left operand: L[2 step + n][0, 1] of row
// group(), [2, 3] of row group() + 8, columns 16 step + 8 n + 2 quad() and the next. A product with a triangle of ones,
// tf32 in two terms; the tokens' order in the inner dimension is the one in which ldmatrix delivers them.
template <class Config, class Gate, class Inputs>
__device__ __forceinline__ void sum_decays(const KdaPrepareMemory<Config>& memory, const KdaPrepareWarp<Config>& warp,
                                           const Gate& gate, const Inputs& inputs, float (&L)[2 * Config::kSteps][4]) {
  constexpr uint32_t kOne = 0x3f800000u;
  const uint32_t even = 2 * warp.quad() <= warp.group() ? kOne : 0;
  const uint32_t odd = 2 * warp.quad() + 1 <= warp.group() ? kOne : 0;
  uint32_t first_tokens[4] = {even, kOne, odd, kOne};
  uint32_t last_tokens[4] = {0, even, 0, odd};
  ptx::pin_registers(first_tokens);  // else ptxas shares the ones, and copies them each time
  ptx::pin_registers(last_tokens);
  constexpr int kAhead = Inputs::kStepsAhead, kSlots = kAhead + 1;
  float x[kSlots][2][4];
#pragma unroll
  for (int step = 0; step < kAhead; ++step) inputs.load(step, x[step]);
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    if (step + kAhead < Config::kSteps) inputs.load(step + kAhead, x[(step + kAhead) % kSlots]);
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float (&own)[4] = x[step % kSlots][n];
      gate.apply(own, ptx::ld_shared(memory.bias() + (16 * step + 8 * n + warp.group()) * 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high[n][i] = __float_as_uint(own[i]) & 0xffffe000u;
        low[n][i] = __float_as_uint(own[i] - __uint_as_float(high[n][i]));
      }
    }
    float (*const sums)[4] = L + 2 * step;
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // the two sums in turn: each product waits for the one before it
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t (&g)[4] = part < 2 ? high[n] : low[n];
        const int i = part % 2 * 2;
        ptx::mma_m16n8k8_tf32(sums[n], part % 2 == 0 ? first_tokens : last_tokens, g[i], g[i + 1]);
      }
    }
    if (warp.group() == 7) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        ptx::st_shared_v2(memory.block_sum(warp.block) + (16 * step + 8 * n + 2 * warp.quad()) * 4, sums[n][2],
                          sums[n][3]);
      }
    }
  }
}

// Calls visit(gate) with the gate of a head.
template <class Config, class Visit>
__device__ __forceinline__ void with_kda_gate(const KdaPrepareParams& params, float a_log, Visit visit) {
  const float a = kda_gate_slope(a_log);
  if (Config::kShallow) {
    visit(KdaBoundedGate<true>(a, params.lower_bound));
  } else if (params.gate == ops::GateKind::kGiven) {
    visit(KdaGivenGate{});
  } else if (params.gate == ops::GateKind::kSoftplus) {
    visit(KdaSoftplusGate{-a});
  } else {
    visit(KdaBoundedGate<false>(a, params.lower_bound));
  }
}

}  // namespace warpgrad::cuda::sm90
