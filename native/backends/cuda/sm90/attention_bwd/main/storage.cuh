#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/config.cuh"
#include "backends/cuda/sm90/attention_bwd/schedule.cuh"

namespace warpgrad::cuda::sm90 {

constexpr int kBwdWorkSlots = 2;  // the producer may be a tile ahead of the consumers

template <class Config>
struct AttentionBwdStorage {
  static constexpr int kStages = Config::kStages;
  struct alignas(kSwizzleAtomBytes) Keys {
    uint8_t bytes[Config::KeyTile::kBytes];
  };
  struct alignas(kSwizzleAtomBytes) Queries {
    uint8_t bytes[Config::QueryTile::kBytes];
  };
  struct alignas(kSwizzleAtomBytes) GradScores {
    uint8_t bytes[Config::GradScoreTile::kBytes];
  };

  Keys smem_k, smem_v;
  Queries smem_q[kStages], smem_d_out[kStages];
  GradScores smem_ds[kStages];
  alignas(16) float lse_log2[kStages][Config::kBlockM];
  alignas(16) float delta[kStages][Config::kBlockM];

  uint64_t bar_kv_full, bar_kv_empty;
  uint64_t bar_q_full[kStages], bar_q_empty[kStages];          // Q and lse
  uint64_t bar_d_out_full[kStages], bar_d_out_empty[kStages];  // dO and delta
  uint64_t bar_ds_full[kStages], bar_ds_empty[kStages];
  uint64_t bar_work_full[kBwdWorkSlots], bar_work_empty[kBwdWorkSlots];
  uint64_t bar_claim;
  AttentionBwdWork work[kBwdWorkSlots];
};

// Named barrier 0 is __syncthreads'.
enum AttentionBwdBarrier : int {
  kBwdBarrierTurn = 1,       // + warpgroup: its turn to issue S and dP
  kBwdBarrierWarpgroup = 3,  // + warpgroup: its 128 threads, around a turn to add to dQ
};

}  // namespace warpgrad::cuda::sm90
