#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/config.cuh"
#include "backends/cuda/sm90/attention_fwd/schedule.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

// A consumer holds one tile while it begins the next; the loads of short tiles run further ahead.
constexpr int kWorkSlots = 4;

template <class Config>
struct AttentionFwdStorage {
  static constexpr int kWarpgroups = Config::kConsumerWarpgroups;
  static constexpr int kStages = Config::kStages;

  SmemTile<typename Config::QueryTile> smem_q[kWarpgroups];
  SmemTile<typename Config::KeyTile> smem_k[kStages];
  SmemTile<typename Config::ValueTile> smem_v[kStages];
  SmemTiles<Config::kTile.out_through_smem ? kWarpgroups : 0, typename Config::OutTile> smem_out;

  uint64_t bar_q_full[kWarpgroups], bar_q_empty[kWarpgroups];
  uint64_t bar_k_full[kStages], bar_k_empty[kStages];
  uint64_t bar_v_full[kStages], bar_v_empty[kStages];
  uint64_t bar_work_full[kWorkSlots], bar_work_empty[kWorkSlots];
  uint64_t bar_claim;
  AttentionFwdWork work[kWorkSlots];
};

// Named barrier 0 is __syncthreads'.
enum NamedBarrier : int {
  kBarrierWarpgroup = 1,  // + warpgroup: its 128 threads, around the use of smem_out
  kBarrierTurn = 4,       // + warpgroup: its turn to issue products
};

}  // namespace warpgrad::cuda::sm90
