#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/config.cuh"
#include "backends/cuda/sm90/attention_bwd/dq/schedule.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
struct AttentionBwdDqStorage {
  static constexpr int kKeyStages = Config::kDqKeyStages, kValueStages = Config::kDqValueStages;

  SmemTile<typename Config::QueryTile> smem_q[kDqWarpgroups];
  SmemTile<typename Config::OutTile> smem_d_out[kDqWarpgroups];
  SmemTile<typename Config::KeyTile> smem_k[kKeyStages];
  SmemTile<typename Config::ValueTile> smem_v[kValueStages];

  uint64_t bar_q_full[kDqWarpgroups], bar_d_out_full[kDqWarpgroups];
  uint64_t bar_k_full[kKeyStages], bar_k_empty[kKeyStages];
  uint64_t bar_v_full[kValueStages], bar_v_empty[kValueStages];
  AttentionBwdDqWork work;
};

}  // namespace warpgrad::cuda::sm90
