#pragma once

#include "backends/cuda/sm90/kda/gradients/config.cuh"
#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "ops/kda.h"

namespace warpgrad::cuda::sm90 {

// The gate of one value head and a thread's two keys, for the thread's elements of one block: from its input x to the
// log decay in base 2, and back. One kind of operation after the other, since each takes long.
template <class Config>
class KdaGate {
 public:
  // NOTE: made anew from shared memory where it is needed; there are no registers to keep it in.
  __device__ __forceinline__ explicit KdaGate(const KdaConsumerThread<Config>& thread)
      : a_(thread.gate_scalars().a), lower_bound_(thread.params.lower_bound) {
    factor_ = Config::kGate == ops::GateKind::kBounded ? a_ * kLog2E : kLog2E;
#pragma unroll
    for (int half = 0; half < 2; ++half) bias_[half] = thread.gate_scalars().bias[thread.key() + 8 * half] * factor_;
  }

  // log2(e) g
  __device__ __forceinline__ void log2_decays(const float (&x)[8], float* g) const {
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = x[i] * kLog2E;
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
      float z[8], e[8], softplus[8];
      load_exponentials(x, z, e);
      log2_softplus(z, e, softplus);
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = -a_ * softplus[i];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = ptx::ex2_approx(-argument(x, i));
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = ptx::rcp_approx(1 + g[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] *= lower_bound_ * kLog2E;
    }
    if constexpr (Config::kAnyDecay) {  // a select, which keeps NaN
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = g[i] < -kKdaMaxTokenDecay ? -kKdaMaxTokenDecay : g[i];
    }
  }

  // x becomes dx, from dg; adds to the part of dA_log, without d_a_log_factor(). A gate at its limit has no gradient,
  // however infinite its other factor is. Where nothing passes, what there is of dg is rounding.
  __device__ __forceinline__ void backward(float (&x)[8], const float* dg, float& d_a_log) const {
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = x[i] * kLog2E <= -kKdaMaxTokenDecay ? 0 : dg[i];
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
      float z[8], e[8], softplus[8];
      load_exponentials(x, z, e);
      log2_softplus(z, e, softplus);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = ptx::rcp_approx(1 + e[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float sigmoid = z[i] < 0 ? e[i] * x[i] : x[i];
        const float passed = a_ * softplus[i] >= kKdaMaxTokenDecay ? 0 : dg[i];
        x[i] = -a_ * sigmoid * passed;
        d_a_log = fmaf(fminf(softplus[i], kLarge), passed, d_a_log);
      }
    } else {
      float z[8], e[8];
      load_exponentials(x, z, e);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = ptx::rcp_approx(1 + e[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // lb a s (1 - s) dg
        x[i] = x[i] * x[i] * (e[i] * (lower_bound_ * a_ * dg[i]));
        d_a_log = fmaf(x[i], fmaxf(fminf(z[i], kLarge), -kLarge), d_a_log);
      }
    }
  }

  __device__ __forceinline__ float d_a_log_factor() const {
    if constexpr (Config::kGate == ops::GateKind::kSoftplus) return -a_ * kLn2;
    return a_ > 0 ? 1 / factor_ : 0;
  }

 private:
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
  static constexpr float kLarge = 1e30f;  // times 0 it is 0

  // (x + bias) log2(e), times a for the bounded gate
  __device__ __forceinline__ float argument(const float (&x)[8], int i) const {
    return fmaf(x[i], factor_, bias_[kda_key_half(i)]);
  }
  // The arguments z, and 2^-|z|.
  __device__ __forceinline__ void load_exponentials(const float (&x)[8], float (&z)[8], float (&e)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      z[i] = argument(x, i);
      e[i] = ptx::ex2_approx(-fabsf(z[i]));
    }
  }
  // log2(1 + 2^z)
  __device__ __forceinline__ static void log2_softplus(const float (&z)[8], const float (&e)[8], float (&softplus)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) softplus[i] = ptx::lg2_approx(1 + e[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float series = e[i] * fmaf(e[i], -0.5f * kLog2E, kLog2E);
      softplus[i] = fmaxf(z[i], 0) + (e[i] < 0.001f ? series : softplus[i]);
    }
  }

  float a_;            // exp(A_log)
  float lower_bound_;  // of the bounded gate
  float factor_, bias_[2];
};

}  // namespace warpgrad::cuda::sm90
