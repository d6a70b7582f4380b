#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/storage.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/config.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/scores.cuh"

namespace warpgrad::cuda::sm90 {

template <ops::GateKind kGateKind, DType kGateDType>
struct KdaGradientsStorage<KdaWideGradientsConfig<kGateKind, kGateDType>> : KdaScores {
  using Config = KdaWideGradientsConfig<kGateKind, kGateDType>;
  // A part of 128 values.
  SmemTile<KdaStateTile> smem_state[2], smem_d_state[2];
  SmemTile<KdaTokenTile> smem_e, smem_dv, smem_d_out;

  SmemTile<KdaTokenTile> smem_k, smem_q;
  alignas(kSwizzleAtomBytes) uint8_t smem_g[Config::kGateSlots][Config::kGateTileBytes];

  alignas(16) float key_sums[kNumKdaKeySums][Config::kConsumerWarps][64];
  float other_sums[kKdaScalarSlots][kNumKdaKeySums][64];  // of the other block of the cluster
  alignas(16) KdaTokenSums token_sums;
  float d_a_log[Config::kConsumerWarps];
  alignas(16) KdaTokenScalars token_scalars[kKdaScalarSlots];
  alignas(16) KdaGateScalars gate_scalars[kKdaScalarSlots];

  uint64_t bar_full[kNumKdaGradientsInputs], bar_empty[kNumKdaGradientsInputs];  // of k, q
  uint64_t bar_g_full[Config::kGateSlots], bar_g_empty[Config::kGateSlots];
  uint64_t bar_values_full, bar_values_empty;  // a phase a part of the values
  uint64_t bar_scores_full, bar_scores_empty;
  uint64_t bar_token_scalars_full[kKdaScalarSlots], bar_token_scalars_empty[kKdaScalarSlots];
  uint64_t bar_gate_scalars_full[kKdaScalarSlots], bar_gate_scalars_empty[kKdaScalarSlots];
  uint64_t bar_dg_full, bar_dqk_full;  // for the storer
  uint64_t bar_key_sums_full, bar_token_sums_full;
  uint64_t bar_other_sums_full[kKdaScalarSlots];
};

}  // namespace warpgrad::cuda::sm90
