#pragma once

#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"
#include "backends/cuda/sm90/tile/tile_planner.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
using AttentionBwdPlanner = TilePlanner<Config, AttentionBwdStorage<Config>, AttentionBwdKernelParams, kBwdWorkSlots>;

// A thread that loads K and V of each tile and keeps the rings of Q and dO full.
template <class Config>
class AttentionBwdProducer {
 public:
  using Params = AttentionBwdKernelParams;
  using Storage = AttentionBwdStorage<Config>;
  using Stages = Ring<Config::kStages>;
  using Slots = Ring<kBwdWorkSlots>;

  __device__ __forceinline__ AttentionBwdProducer(Storage& storage, const Params& params)
      : storage_(storage), params_(params) {}

  __device__ __forceinline__ void run() {
    for (;; ++num_tiles_) {
      const uint32_t slot = Slots::stage(num_tiles_);
      ptx::mbarrier_wait(&storage_.bar_work_full[slot], Slots::parity(num_tiles_));
      const AttentionBwdWork& work = storage_.work[slot];
      if (work.n < 0) break;
      load_tile(work);
      // One or two steps are left of the tile; others may be waiting for the one that comes next.
      ptx::mbarrier_arrive(&storage_.bar_claim);
      ptx::mbarrier_arrive(&storage_.bar_work_empty[slot]);
    }
  }

 private:
  // The first Q and dO before K and V, whose slots the tile before holds longest.
  __device__ __forceinline__ void load_tile(const AttentionBwdWork& work) {
    const int m_first = work.m_first, m_last = work.m_last;
    if (m_last < m_first) return load_keys(work);
    for (int head = 0; head < work.num_heads; ++head) {
      for (int m = m_first; m <= m_last; ++m) {
        load_rows(work, head, m);
        if (head == 0 && m == m_first) load_keys(work);
      }
    }
  }

  __device__ __forceinline__ void load_rows(const AttentionBwdWork& work, int head, int m) {
    const uint32_t stage = Stages::stage(num_steps_), free_parity = Stages::parity(num_steps_) ^ 1;
    const int64_t first_row = static_cast<int64_t>(work.row_block + head * params_.row_blocks + m) * Config::kBlockM;
    const int row = work.q_row_shift + m * Config::kBlockM;
    const int q_head = work.first_head + head;

    ptx::mbarrier_wait(&storage_.bar_q_empty[stage], free_parity);
    load_operand<typename Config::QueryTile>(storage_.smem_q[stage].bytes, params_.tensor_map_q, row, q_head,
                                             work.q_batch, storage_.lse_log2[stage], params_.lse_log2 + first_row,
                                             &storage_.bar_q_full[stage]);
    ptx::mbarrier_wait(&storage_.bar_d_out_empty[stage], free_parity);
    load_operand<typename Config::OutTile>(storage_.smem_d_out[stage].bytes, params_.tensor_map_d_out, row, q_head,
                                           work.q_batch, storage_.delta[stage], params_.delta + first_row,
                                           &storage_.bar_d_out_full[stage]);
    ++num_steps_;
  }

  // Rows of Q or dO with the number that goes with each.
  template <class Tile>
  __device__ __forceinline__ void load_operand(uint8_t* smem, const CUtensorMap& map, int row, int head, int batch,
                                               float* smem_values, const float* values, uint64_t* full) {
    constexpr uint32_t kValueBytes = Config::kBlockM * sizeof(float);
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes + kValueBytes);
    load_panels<Tile>(smem, map, row, head, batch, full);
    ptx::bulk_load(smem_values, values, kValueBytes, full);
  }

  __device__ __forceinline__ void load_keys(const AttentionBwdWork& work) {
    using KeyTile = typename Config::KeyTile;
    using ValueTile = typename Config::ValueTile;
    ptx::mbarrier_wait(&storage_.bar_kv_empty, (num_tiles_ & 1) ^ 1);
    ptx::mbarrier_arrive_expect_tx(&storage_.bar_kv_full, KeyTile::kBytes + ValueTile::kBytes);
    const int row = work.k_row_shift + work.n * Config::kBlockN;
    load_panels<KeyTile>(storage_.smem_k.bytes, params_.tensor_map_k, row, work.kv_head, work.k_batch,
                         &storage_.bar_kv_full);
    load_panels<ValueTile>(storage_.smem_v.bytes, params_.tensor_map_v, row, work.kv_head, work.k_batch,
                           &storage_.bar_kv_full);
  }

  template <class Tile>
  __device__ __forceinline__ void load_panels(uint8_t* smem, const CUtensorMap& map, int row, int head, int batch,
                                              uint64_t* full) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      ptx::tensor_load(smem + panel * Tile::kPanelBytes, map, {panel * kPanelColumns, row, head, batch, params_.wrap},
                       full);
    }
  }

  Storage& storage_;
  const Params& params_;
  uint32_t num_steps_ = 0, num_tiles_ = 0;  // loaded
};

}  // namespace warpgrad::cuda::sm90
