#pragma once

#include "backends/cuda/sm90/kda/layout.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// Rows whose log2 of the decay since their block's start is below are deep: 1 / 2^this leaves room for k below 2^12.
constexpr float kKdaDeepestLog2 = -115.5f;
constexpr int kKdaBlockRows = 16;  // 16 steps of -5 are not deeper

// One block a (chunk, value head); each of its warps owns 16 of the 64 rows. `kShallowGate`: g is bfloat16, and the
// gate has a bound with which no row is deep; else g and gate are any.
template <int kPanels, bool kNorm, bool kShallowGate>
struct KdaPrepareConfig {
  // Chosen
  static constexpr int kKeyPanels = kPanels;
  static constexpr bool kQkL2Norm = kNorm;
  static constexpr bool kShallow = kShallowGate;
  static constexpr int kBlocksPerMultiprocessor = kPanels == 1 ? 4 : kPanels == 4 ? 2 : kShallowGate ? 4 : 3;

  // Derived
  static constexpr int kThreads = kWarpgroupThreads;
  static constexpr int kKeys = 64 * kKeyPanels;
  static constexpr int kSteps = kKeys / 16;  // of the products over the keys
  // Of beta k where it is the right operand of a product: keeps float16 copies normal down to betas of 1e-6. Without
  // the norm beta |k|^2 may be large.
  static constexpr float kSourceLog2 = kQkL2Norm ? 8 : 0;
  static constexpr float kOverSource = kQkL2Norm ? 0x1p-8f : 1;
  using KeyTile = SwizzledTile<kKdaChunkRows, kKeys>;

  // Guarded
  static_assert(kPanels == 1 || kPanels == 2 || kPanels == 4);
};

}  // namespace warpgrad::cuda::sm90
