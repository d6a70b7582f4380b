#pragma once

#include "backends/cuda/sm90/kda/gradients/config.cuh"

namespace warpgrad::cuda::sm90 {

// K or V above 128: a block has 128 of the keys, and 128 of the values at a time.
template <ops::GateKind kGateKind, DType kGateDType>
struct KdaWideGradientsConfig : KdaGradientsConfig<kGateKind, true, kGateDType> {
  static constexpr bool kWide = true;
  static constexpr int kHelperRegisters = 40;  // for the sums of two blocks
  static constexpr int kConsumerRegisters = 232;
};

}  // namespace warpgrad::cuda::sm90
