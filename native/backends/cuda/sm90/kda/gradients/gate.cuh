#pragma once

#include "backends/cuda/sm90/kda/gate_math.cuh"
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
    factor_ = Config::kGate == ops::GateKind::kBounded ? a_ * kKdaLog2E : kKdaLog2E;
#pragma unroll
    for (int half = 0; half < 2; ++half) bias_[half] = thread.gate_scalars().bias[thread.key() + 8 * half] * factor_;
  }

  // x becomes log2(e) g
  template <int kElements>
  __device__ __forceinline__ void log2_decays(float (&x)[kElements]) const {
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] *= kKdaLog2E;
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
#pragma unroll
      for (int part = 0; part < kElements; part += kPart<kElements>) {
        float z[kPart<kElements>], e[kPart<kElements>];
        load_exponentials(x + part, z, e);
        kda_log2_softplus(z, e, x + part);
#pragma unroll
        for (int i = part; i < part + kPart<kElements>; ++i) x[i] *= -a_;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = ptx::ex2_approx(-argument(x, i));
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = ptx::rcp_approx(1 + x[i]);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] *= lower_bound_ * kKdaLog2E;
    }
    if constexpr (Config::kAnyDecay) {  // a select, which keeps NaN
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = x[i] < -kKdaMaxTokenDecay ? -kKdaMaxTokenDecay : x[i];
    }
  }

  // x becomes dx, from dg; adds to the part of dA_log, without d_a_log_factor(). A gate at its limit has no gradient,
  // however infinite its other factor is. Where nothing passes, what there is of dg is rounding.
  template <int kElements>
  __device__ __forceinline__ void backward(float (&x)[kElements], const float (&dg)[kElements], float& d_a_log) const {
#pragma unroll
    for (int part = 0; part < kElements; part += kPart<kElements>) {
      backward_part<kPart<kElements>>(x + part, dg + part, d_a_log);
    }
  }

  __device__ __forceinline__ float d_a_log_factor() const {
    if constexpr (Config::kGate == ops::GateKind::kSoftplus) return -a_ * kLn2;
    return a_ > 0 ? 1 / factor_ : 0;
  }

 private:
  static constexpr float kLn2 = 0.693147181f;
  static constexpr float kLarge = 1e30f;  // times 0 it is 0
  template <int kElements>
  static constexpr int kPart = kElements < 16 ? kElements : 16;  // elements side by side

  template <int kCount>
  __device__ __forceinline__ void backward_part(float* x, const float* dg, float& d_a_log) const {
    if constexpr (Config::kGate == ops::GateKind::kGiven) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = x[i] * kKdaLog2E <= -kKdaMaxTokenDecay ? 0 : dg[i];
    } else if constexpr (Config::kGate == ops::GateKind::kSoftplus) {
      float z[kCount], e[kCount], softplus[kCount];
      load_exponentials(x, z, e);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = ptx::rcp_approx(1 + e[i]);
      kda_log2_softplus(z, e, softplus);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float sigmoid = z[i] < 0 ? e[i] * x[i] : x[i];
        const float passed = a_ * softplus[i] >= kKdaMaxTokenDecay ? 0 : dg[i];
        x[i] = -a_ * sigmoid * passed;
        d_a_log = fmaf(fminf(softplus[i], kLarge), passed, d_a_log);
      }
    } else {
      float z[kCount], e[kCount];
      load_exponentials(x, z, e);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = ptx::rcp_approx(1 + e[i]);
      // lb a s (1 - s) dg
#pragma unroll
      for (int i = 0; i < kCount; ++i) e[i] *= lower_bound_ * a_ * dg[i];
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] *= x[i] * e[i];
#pragma unroll
      for (int i = 0; i < kCount; ++i) d_a_log = fmaf(x[i], fmaxf(fminf(z[i], kLarge), -kLarge), d_a_log);
    }
  }

  // (x + bias) log2(e), times a for the bounded gate
  __device__ __forceinline__ float argument(const float* x, int i) const {
    return fmaf(x[i], factor_, bias_[kda_key_half(i)]);
  }
  // The arguments z, and 2^-|z|.
  template <int kCount>
  __device__ __forceinline__ void load_exponentials(const float* x, float (&z)[kCount], float (&e)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = argument(x, i);
#pragma unroll
    for (int i = 0; i < kCount; ++i) e[i] = ptx::ex2_approx(-fabsf(z[i]));
  }
  float a_;            // exp(A_log)
  float lower_bound_;  // of the bounded gate
  float factor_, bias_[2];
};

}  // namespace warpgrad::cuda::sm90
