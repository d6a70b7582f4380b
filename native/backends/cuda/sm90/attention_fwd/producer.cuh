#pragma once

#include "backends/cuda/sm90/attention_fwd/schedule.cuh"
#include "backends/cuda/sm90/attention_fwd/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"
#include "backends/cuda/sm90/tile/tile_planner.cuh"

namespace warpgrad::cuda::sm90 {

constexpr int kClaimLead = 3;  // key tiles to load after the next tile has been asked for: about the time that it takes

template <class Config>
using AttentionFwdPlanner = TilePlanner<Config, AttentionFwdStorage<Config>, AttentionFwdKernelParams, kWorkSlots>;

// A thread that keeps Q and the rings of K and V full.
template <class Config>
class AttentionFwdProducer {
 public:
  using Params = AttentionFwdKernelParams;
  using Storage = AttentionFwdStorage<Config>;
  using Stages = Ring<Config::kStages>;
  using Slots = Ring<kWorkSlots>;

  __device__ __forceinline__ AttentionFwdProducer(Storage& storage, const Params& params)
      : storage_(storage), params_(params) {}

  // In the order in which the consumers ask: the first product of a tile precedes the last of the tile before.
  __device__ __forceinline__ void run() {
    const AttentionFwdWork* previous = nullptr;
    while (true) {
      const uint32_t slot = Slots::stage(num_tiles_);
      ptx::mbarrier_wait(&storage_.bar_work_full[slot], Slots::parity(num_tiles_));
      const AttentionFwdWork& work = storage_.work[slot];
      const int n_last = work.n_last, n_first = work.n_first;
      if (n_last >= 0) load_keys(work, n_last);
      if (previous != nullptr) {
        load_values(*previous, previous->n_first);
        ptx::mbarrier_arrive(&storage_.bar_work_empty[Slots::stage(num_tiles_ - 1)]);
      }
      if (n_last < 0) break;
      load_queries(work);
      const int n_claim = min(n_last, n_first + kClaimLead);
      for (int n = n_last;; --n) {
        if (n == n_claim) ptx::mbarrier_arrive(&storage_.bar_claim);
        if (n == n_first) break;
        load_keys(work, n - 1);
        load_values(work, n);
      }
      previous = &work;
      ++num_tiles_;
    }
  }

 private:
  __device__ __forceinline__ void load_queries(const AttentionFwdWork& work) {
    const uint32_t box_bytes = params_.warpgroup_queries * params_.pack * kPanelRowBytes;
    for (int warpgroup = 0; warpgroup < Config::kConsumerWarpgroups; ++warpgroup) {
      uint64_t* full = &storage_.bar_q_full[warpgroup];
      ptx::mbarrier_wait(&storage_.bar_q_empty[warpgroup], (num_tiles_ & 1) ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, box_bytes * Config::QueryTile::kPanels);
      const int row = work.q_row_shift + work.q_first + warpgroup * params_.warpgroup_queries;
#pragma unroll
      for (int panel = 0; panel < Config::QueryTile::kPanels; ++panel) {
        ptx::tensor_load(storage_.smem_q[warpgroup].bytes + panel * Config::QueryTile::kPanelBytes,
                         params_.tensor_map_q, {panel * kPanelColumns, 0, row, work.head_group, work.q_batch}, full);
      }
    }
  }

  __device__ __forceinline__ void load_keys(const AttentionFwdWork& work, int n) {
    load_tile<typename Config::KeyTile>(num_keys_, storage_.smem_k, storage_.bar_k_full, storage_.bar_k_empty,
                                        params_.tensor_map_k, work, n);
  }
  __device__ __forceinline__ void load_values(const AttentionFwdWork& work, int n) {
    load_tile<typename Config::ValueTile>(num_values_, storage_.smem_v, storage_.bar_v_full, storage_.bar_v_empty,
                                          params_.tensor_map_v, work, n);
  }

  template <class Tile>
  __device__ __forceinline__ void load_tile(uint32_t& count, SmemTile<Tile>* tiles, uint64_t* bar_full,
                                            uint64_t* bar_empty, const CUtensorMap& map, const AttentionFwdWork& work,
                                            int n) {
    const uint32_t stage = Stages::stage(count);
    uint64_t* full = &bar_full[stage];
    ptx::mbarrier_wait(&bar_empty[stage], Stages::parity(count) ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
    const int row = work.k_row_shift + n * Config::kBlockN;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      ptx::tensor_load(tiles[stage].bytes + panel * Tile::kPanelBytes, map,
                       {panel * kPanelColumns, row, work.kv_head, work.k_batch, params_.k_wrap}, full);
    }
    ++count;
  }

  Storage& storage_;
  const Params& params_;
  uint32_t num_keys_ = 0, num_values_ = 0, num_tiles_ = 0;  // loaded
};

}  // namespace warpgrad::cuda::sm90
