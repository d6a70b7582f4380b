#pragma once

#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/find_sequence.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warp that claims tiles and says what they are.
template <class Config>
class AttentionBwdPlanner {
 public:
  using Params = AttentionBwdKernelParams;
  using Storage = AttentionBwdStorage<Config>;
  using Slots = Ring<kBwdWorkSlots>;

  __device__ __forceinline__ AttentionBwdPlanner(Storage& storage, const Params& params)
      : storage_(storage), params_(params), lane_idx_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run() {
    for (uint32_t count = 0;; ++count) {
      const uint32_t slot = Slots::stage(count);
      ptx::mbarrier_wait(&storage_.bar_work_empty[slot], Slots::parity(count) ^ 1);
      // Not before all of the one before is loaded, when one or two steps of it are left: a tile claimed early is one
      // that no idle block can take, and that others may be waiting for.
      if (count > 0) ptx::mbarrier_wait(&storage_.bar_claim, (count - 1) & 1);
      const int tile = count == 0 ? static_cast<int>(blockIdx.x) : claim_tile();
      const bool done = tile >= params_.num_tiles;
      if (done) {
        if (lane_idx_ == 0) storage_.work[slot].n = -1;
      } else {
        plan(tile, storage_.work[slot]);
      }
      if (lane_idx_ == 0) ptx::mbarrier_arrive(&storage_.bar_work_full[slot]);
      if (done) break;
    }
    if (lane_idx_ == 0) finish();
  }

 private:
  __device__ __forceinline__ void plan(int tile, AttentionBwdWork& work) {
    const int sequence =
        params_.sequences == nullptr ? 0 : find_sequence(params_.sequences, params_.num_sequences, tile, lane_idx_);
    if (lane_idx_ != 0) return;
    plan_tile<Config>(params_, params_.sequences == nullptr ? params_.dense : params_.sequences[sequence], tile, work);
  }

  __device__ __forceinline__ int claim_tile() {
    const int claimed = lane_idx_ == 0 ? static_cast<int>(gridDim.x) + atomicAdd(&params_.counters[0], 1) : 0;
    return __shfl_sync(~0u, claimed, 0);
  }

  // The last block leaves the counters as it found them.
  __device__ __forceinline__ void finish() {
    __threadfence();
    if (atomicAdd(&params_.counters[1], 1) == static_cast<int>(gridDim.x) - 1) {
      params_.counters[0] = 0;
      params_.counters[1] = 0;
    }
  }

  Storage& storage_;
  const Params& params_;
  const int lane_idx_;
};

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
      ptx::mbarrier_arrive(&storage_.bar_claim);
      ptx::mbarrier_arrive(&storage_.bar_work_empty[slot]);
    }
  }

 private:
  // The first Q and dO before K and V, whose slots the tile before holds longest.
  __device__ __forceinline__ void load_tile(const AttentionBwdWork& work) {
    const int m_first = work.m_first, m_last = work.m_last;
    if (m_last < m_first) return load_keys(work);
    for (int head = 0; head < params_.group; ++head) {
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
    const int q_head = work.kv_head * params_.group + head;

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
