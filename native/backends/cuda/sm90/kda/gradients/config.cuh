#pragma once

#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "core/dtype.h"
#include "ops/kda.h"

namespace warpgrad::cuda::sm90 {

// Of a block of 16 rows, in base 2: so much decay between its first and its last row may be divided by. The factors of
// the rows are centred by half of it, which leaves 2^72 to the numbers that they multiply.
constexpr float kKdaMaxBlockDecay = 110;
constexpr float kKdaReferenceShift = kKdaMaxBlockDecay / 2;
// A token's decay is cut off here: differences of sums of 64 stay exact enough, and 2^-120 is as good as 0.
constexpr float kKdaMaxTokenDecay = 120;

// Gradients of one (chunk, value head) a step, K and V up to 128; see wide/ for more. README.md describes who does
// what.
template <ops::GateKind kGateKind, bool kAnyDecayIn, DType kGateDType>
struct KdaGradientsConfig {
  // Chosen
  static constexpr ops::GateKind kGate = kGateKind;
  static constexpr bool kAnyDecay = kAnyDecayIn;  // whether a block may decay by more than kKdaMaxBlockDecay
  static constexpr DType kGateType = kGateDType;  // of g and dg
  static constexpr bool kWide = false;
  static constexpr int kConsumerWarpgroups = 2;  // of 64 keys each
  static constexpr int kHelperRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // Derived
  static constexpr int kConsumerThreads = kConsumerWarpgroups * kWarpgroupThreads;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;
  static constexpr bool kFloat32Gate = kGateType == DType::kFloat32;
  static constexpr int kGateBytes = static_cast<int>(dtype_bytes(kGateType));  // of an element
  static constexpr int kGateTileBytes = 64 * 128 * kGateBytes;
  static constexpr int kGateSlots = kFloat32Gate ? 1 : 2;           // what there is room for
  static constexpr int kGatePanelColumns = kFloat32Gate ? 32 : 64;  // 128 bytes a row
  static constexpr int kGatePanels = 128 / kGatePanelColumns;

  // Guarded
  static_assert(kGateType == DType::kFloat32 || kGateType == DType::kBFloat16);
  // setmaxnreg hands out what the block began with.
  static constexpr int kEntryRegisters = kRegistersPerBlock / kThreads / 8 * 8;
  static_assert(kConsumerThreads * kConsumerRegisters + kWarpgroupThreads * kHelperRegisters <=
                kThreads * kEntryRegisters);
};

}  // namespace warpgrad::cuda::sm90
