#pragma once

#include "backends/cuda/sm90/kda/gradients/config.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "ops/kda.h"

namespace warpgrad::cuda::sm90 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// The gate of one value head and a thread's two keys, from its input x to the log decay in base 2, and back.
template <class Config>
struct KdaGate {
  float a;            // exp(A_log)
  float lower_bound;  // of the bounded gate
  float bias[2];

  // log2(e) g
  __device__ __forceinline__ float log2_decay(float x, int key) const {
    float g;
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
      g = x * kLog2E;
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
      g = -a * log2_softplus((x + bias[key]) * kLog2E);
    } else {
      g = lower_bound * kLog2E * ptx::rcp_approx(1 + ptx::ex2_approx((x + bias[key]) * (-a * kLog2E)));
    }
    // A select, which keeps NaN.
    if constexpr (Config::kAnyDecay) g = g < -kKdaMaxTokenDecay ? -kKdaMaxTokenDecay : g;
    return g;
  }

  struct Gradient {
    float dx;
    float d_a_log;  // this element's part, without the factor d_a_log_factor()
  };

  // From dg. A gate at its limit has no gradient, however infinite its other factor is.
  __device__ __forceinline__ Gradient backward(float x, int key, float dg) const {
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
      return {is_cut_off(x * kLog2E) ? 0 : dg, 0};
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
      const float z = (x + bias[key]) * kLog2E;
      const float e = ptx::ex2_approx(-fabsf(z)), inverse = ptx::rcp_approx(1 + e);
      const float softplus = log2_softplus(z), sigmoid = z < 0 ? e * inverse : inverse;
      dg = is_cut_off(-a * softplus) ? 0 : dg;
      return {-a * sigmoid * dg, dg == 0 ? 0 : softplus * dg};
    } else {
      const float z = x + bias[key];
      const float e = ptx::ex2_approx(-fabsf(z * (a * kLog2E))), inverse = ptx::rcp_approx(1 + e);
      const float dx = lower_bound * a * (e * inverse * inverse) * dg;  // lb a s (1 - s) dg
      return {dx, dx == 0 ? 0 : dx * z};
    }
  }

  __device__ __forceinline__ float d_a_log_factor() const {
    return Config::kGate == ops::GateKind::kSoftplus ? -a * kLn2 : 1;
  }

 private:
  // Where nothing passes, what is left of dg is rounding.
  __device__ __forceinline__ static bool is_cut_off(float log2_decay) { return log2_decay <= -kKdaMaxTokenDecay; }

  // log2(1 + 2^z)
  __device__ __forceinline__ static float log2_softplus(float z) {
    const float e = ptx::ex2_approx(-fabsf(z));
    const float log = e < 0.001f ? e * fmaf(e, -0.5f * kLog2E, kLog2E) : ptx::lg2_approx(1 + e);
    return fmaxf(z, 0) + log;
  }
};

}  // namespace warpgrad::cuda::sm90
