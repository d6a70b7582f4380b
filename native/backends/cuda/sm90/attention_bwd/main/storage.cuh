#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/config.cuh"
#include "backends/cuda/sm90/attention_bwd/schedule.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

constexpr int kBwdWorkSlots = 2;  // the producer may be a tile ahead of the consumers

constexpr int kDqAdders = 2;  // the warpgroups that compute dQ

template <class Config>
struct AttentionBwdStorage {
  static constexpr int kStages = Config::kStages;
  using Scores = SmemTile<typename Config::ScoreTile>;

  SmemTile<typename Config::KeyTile> smem_k;
  SmemTile<typename Config::ValueTile> smem_v;
  SmemTile<typename Config::QueryTile> smem_q[kStages];
  SmemTile<typename Config::OutTile> smem_d_out[kStages];
  Scores smem_ds[kStages];
  SmemTiles<Config::kByKeys ? 0 : kStages, typename Config::ScoreTile> smem_p;  // by keys, P stays in registers
  alignas(16) float lse_log2[kStages][Config::kBlockM];
  alignas(16) float delta[kStages][Config::kBlockM];

  uint64_t bar_kv_full, bar_kv_empty;
  uint64_t bar_q_full[kStages], bar_q_empty[kStages];          // Q and lse
  uint64_t bar_d_out_full[kStages], bar_d_out_empty[kStages];  // dO and delta
  uint64_t bar_ds_full[kStages], bar_ds_empty[kStages];
  uint64_t bar_p_full[kStages], bar_p_empty[kStages];
  uint64_t bar_work_full[kBwdWorkSlots], bar_work_empty[kBwdWorkSlots];
  uint64_t bar_claim;
  uint64_t bar_dq_turn[kDqAdders], bar_dq_added[kDqAdders];
  AttentionBwdWork work[kBwdWorkSlots];
};

// Named barrier 0 is __syncthreads'.
enum AttentionBwdBarrier : int {
  kBwdBarrierTurn = 1,  // + warpgroup: its turn to issue S and dP
};

}  // namespace warpgrad::cuda::sm90
