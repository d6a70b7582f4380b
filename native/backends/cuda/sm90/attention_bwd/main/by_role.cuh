#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/sm90/attention_bwd/main/epilogue.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/attention_bwd/probability.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// What the warpgroups of the form by role have in common: the walk over tiles, heads and row blocks.
template <class Config, class Role>
class AttentionBwdRole {
 public:
  using Params = AttentionBwdKernelParams;
  using Storage = AttentionBwdStorage<Config>;
  using Stages = Ring<Config::kStages>;
  using Slots = Ring<kBwdWorkSlots>;
  using QueryTile = typename Config::QueryTile;
  using OutTile = typename Config::OutTile;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;
  using ScoreTile = typename Config::ScoreTile;

  __device__ __forceinline__ void run() {
    for (uint32_t tile = 0;; ++tile) {
      const uint32_t slot = Slots::stage(tile);
      ptx::mbarrier_wait(&storage_.bar_work_full[slot], Slots::parity(tile));
      const AttentionBwdWork& work = storage_.work[slot];
      if (uniform(work.n) < 0) break;
      ptx::mbarrier_wait(&storage_.bar_kv_full, tile & 1);
      role().begin_tile();
      walk(work);
      role().end_tile(work);
      release(&storage_.bar_work_empty[slot]);
    }
  }

 protected:
  __device__ __forceinline__ AttentionBwdRole(Storage& storage, const Params& params)
      : storage_(storage), params_(params) {}

  // Tells ptxas that the warp agrees on the value.
  __device__ __forceinline__ static int uniform(int value) { return __shfl_sync(~0u, value, 0); }
  // A slot is given back once a warp.
  __device__ __forceinline__ static void release(uint64_t* barrier) { ptx::mbarrier_arrive_once(barrier); }

  __device__ __forceinline__ uint32_t stage() const { return Stages::stage(num_steps_); }
  __device__ __forceinline__ uint32_t parity() const { return Stages::parity(num_steps_); }

  Storage& storage_;
  const Params& params_;

 private:
  __device__ __forceinline__ Role& role() { return static_cast<Role&>(*this); }

  __device__ __forceinline__ void walk(const AttentionBwdWork& work) {
    const int m_first = uniform(work.m_first), m_last = uniform(work.m_last), num_heads = uniform(work.num_heads);
#pragma unroll 1
    for (int head = 0; head < num_heads; ++head) {
#pragma unroll 1
      for (int m = m_first; m <= m_last; ++m) {
        role().step(work, m);
        ++num_steps_;
      }
    }
  }

  uint32_t num_steps_ = 0;  // done
};

// S = Q Kᵀ and dP = dO Vᵀ of 64 queries and 64 keys, and from them P and dS, in the layout of VisibleScores.
template <class Config>
class AttentionBwdScores : public AttentionBwdRole<Config, AttentionBwdScores<Config>> {
  using Base = AttentionBwdRole<Config, AttentionBwdScores<Config>>;
  using Base::params_;
  using Base::release;
  using Base::storage_;
  using typename Base::KeyTile;
  using typename Base::OutTile;
  using typename Base::QueryTile;
  using typename Base::ScoreTile;
  using typename Base::ValueTile;
  using Product = ptx::Wgmma<Config::kType, Config::kBlockN>;

 public:
  __device__ __forceinline__ AttentionBwdScores(typename Base::Storage& storage, const typename Base::Params& params)
      : Base(storage, params), first_row_(threadIdx.x / kWarpThreads % 4 * 16) {}

  __device__ __forceinline__ void begin_tile() {}
  __device__ __forceinline__ void end_tile(const AttentionBwdWork& work) { release(&storage_.bar_kv_empty); }

  __device__ __forceinline__ void step(const AttentionBwdWork& work, int m) {
    const uint32_t stage = this->stage(), parity = this->parity();
    float accum_s[Config::kScoreRegisters], accum_dp[Config::kScoreRegisters];
    ptx::mbarrier_wait(&storage_.bar_q_full[stage], parity);
    issue<QueryTile, KeyTile, Config::kQkDim>(accum_s, storage_.smem_q[0].bytes, storage_.smem_k.bytes, stage);
    ptx::mbarrier_wait(&storage_.bar_d_out_full[stage], parity);
    issue<OutTile, ValueTile, Config::kVDim>(accum_dp, storage_.smem_d_out[0].bytes, storage_.smem_v.bytes, stage);
    const bool masked = m < work.m_full_first || m >= work.m_full_end;
    const float lse[2] = {row_value(storage_.lse_log2[stage], 0), row_value(storage_.lse_log2[stage], 1)};
    const float delta[2] = {row_value(storage_.delta[stage], 0), row_value(storage_.delta[stage], 1)};

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(accum_s);
    uint32_t fragment[Config::kFragmentRegisters];
    probabilities(accum_s, fragment, lse);
    if (masked) mask(accum_s, fragment, work, m);
    ptx::mbarrier_wait(&storage_.bar_p_empty[stage], parity ^ 1);
    share(fragment, storage_.smem_p.tiles[stage].bytes, &storage_.bar_p_full[stage]);

    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dp);
    ptx::mbarrier_arrive(&storage_.bar_q_empty[stage]);
    ptx::mbarrier_arrive(&storage_.bar_d_out_empty[stage]);
#pragma unroll
    for (int i = 0; i < Config::kFragmentRegisters; ++i) {
      const float row_delta = delta[i & 1];
      fragment[i] = ptx::cvt_pair<Config::kType>(accum_s[2 * i] * (accum_dp[2 * i] - row_delta),
                                                 accum_s[2 * i + 1] * (accum_dp[2 * i + 1] - row_delta));
    }
    ptx::mbarrier_wait(&storage_.bar_ds_empty[stage], parity ^ 1);
    share(fragment, storage_.smem_ds[stage].bytes, &storage_.bar_ds_full[stage]);
  }

 private:
  template <class RowTile, class ColumnTile, int kInner>
  __device__ __forceinline__ void issue(float (&accum)[Config::kScoreRegisters], const uint8_t* rows,
                                        const uint8_t* columns, uint32_t stage) {
    const uint64_t a = RowTile::inner_columns_descriptor(ptx::shared_address(rows)) + stage * RowTile::kStageStep;
    const uint64_t b = ColumnTile::inner_columns_descriptor(ptx::shared_address(columns));
    ptx::pin_registers(accum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
      Product::template ss<0, 0>(accum, a + RowTile::inner_columns_step(k), b + ColumnTile::inner_columns_step(k),
                                 k > 0);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ float row_value(const float* values, int row) const {
    return values[first_row_ + threadIdx.x % kWarpThreads / 4 + 8 * row];
  }

  // P = exp(S - lse), left in accum_s for dS (with softcap: times the derivative of the tanh) and rounded for dV.
  __device__ __forceinline__ void probabilities(float (&accum_s)[Config::kScoreRegisters],
                                                uint32_t (&fragment)[Config::kFragmentRegisters],
                                                const float (&lse)[2]) const {
#pragma unroll
    for (int i = 0; i < Config::kFragmentRegisters; ++i) {
      float p[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) p[j] = exponentiate_score<Config>(accum_s[2 * i + j], lse[i & 1], params_);
      fragment[i] = ptx::cvt_pair<Config::kType>(p[0], p[1]);
    }
  }

  // Sets P to 0 where the key is not visible. Selected, not multiplied: such a score may be anything.
  __device__ __forceinline__ void mask(float (&accum_s)[Config::kScoreRegisters],
                                       uint32_t (&fragment)[Config::kFragmentRegisters], const AttentionBwdWork& work,
                                       int m) const {
    const VisibleScores visible(work, m * Config::kBlockM, work.n * Config::kBlockN);
#pragma unroll
    for (int i = 0; i < Config::kFragmentRegisters; ++i) {
      const bool first = visible(2 * i), second = visible(2 * i + 1);
      if (!first) accum_s[2 * i] = 0;
      if (!second) accum_s[2 * i + 1] = 0;
      fragment[i] &= (first ? 0x0000ffffu : 0) | (second ? 0xffff0000u : 0);
    }
  }

  // P or dS to shared memory, [query][key].
  __device__ __forceinline__ void share(const uint32_t (&fragment)[Config::kFragmentRegisters], uint8_t* smem,
                                        uint64_t* full) const {
    const int lane_idx = threadIdx.x % kWarpThreads;
    const uint32_t tile_address = ptx::shared_address(smem);
#pragma unroll
    for (int chunk = 0; chunk < Config::kBlockN / 8; chunk += 2) {
      ptx::stmatrix_x4(ScoreTile::chunk_address(tile_address, first_row_ + lane_idx % 16, chunk + lane_idx / 16),
                       fragment[2 * chunk], fragment[2 * chunk + 1], fragment[2 * chunk + 2], fragment[2 * chunk + 3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    release(full);
  }

  const int first_row_;  // of the warp
};

// Sums up dV = Pᵀ dO or dK = dSᵀ Q of 64 keys.
template <class Config, bool kOfValues>
class AttentionBwdGradient : public AttentionBwdRole<Config, AttentionBwdGradient<Config, kOfValues>> {
  using Base = AttentionBwdRole<Config, AttentionBwdGradient<Config, kOfValues>>;
  using Base::params_;
  using Base::release;
  using Base::storage_;
  using typename Base::ScoreTile;
  using RowTile = std::conditional_t<kOfValues, typename Base::OutTile, typename Base::QueryTile>;
  static constexpr int kColumns = kOfValues ? Config::kVDim : Config::kQkDim;
  // Two products side by side: ptxas has 128 registers for an instruction here, not enough for 256 columns.
  static constexpr int kLeftColumns = 2 * kPanelColumns, kRightColumns = kColumns - kLeftColumns;

 public:
  __device__ __forceinline__ AttentionBwdGradient(typename Base::Storage& storage, const typename Base::Params& params)
      : Base(storage, params) {}

  __device__ __forceinline__ void begin_tile() {
#pragma unroll
    for (float& value : left_) value = 0;
#pragma unroll
    for (float& value : right_) value = 0;
  }
  __device__ __forceinline__ void end_tile(const AttentionBwdWork& work) {
    release(&storage_.bar_kv_empty);
    const float factor = kOfValues ? 1.0f : params_.scale;
    const AttentionBwdGradTarget target = kOfValues ? values_target(params_) : keys_target(params_);
    store_rows<Config>(params_, work, 0, left_, factor, target);
    if constexpr (kRightColumns > 0) {
      store_rows<Config>(params_, work, 0, right_, factor, target, kLeftColumns);
    }
  }

  __device__ __forceinline__ void step(const AttentionBwdWork&, int) {
    const uint32_t stage = this->stage(), parity = this->parity();
    ptx::mbarrier_wait(&(kOfValues ? storage_.bar_d_out_full : storage_.bar_q_full)[stage], parity);
    ptx::mbarrier_wait(&(kOfValues ? storage_.bar_p_full : storage_.bar_ds_full)[stage], parity);
    issue_sum(stage);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(left_);
    if constexpr (kRightColumns > 0) ptx::pin_registers(right_);
    release(&(kOfValues ? storage_.bar_d_out_empty : storage_.bar_q_empty)[stage]);
    release(&(kOfValues ? storage_.bar_p_empty : storage_.bar_ds_empty)[stage]);
  }

 private:
  __device__ __forceinline__ void issue_sum(uint32_t stage) {
    const uint8_t* scores = kOfValues ? storage_.smem_p.tiles[0].bytes : storage_.smem_ds[0].bytes;
    const uint8_t* rows = kOfValues ? storage_.smem_d_out[0].bytes : storage_.smem_q[0].bytes;
    const uint64_t a = ScoreTile::inner_rows_descriptor(ptx::shared_address(scores)) + stage * ScoreTile::kStageStep;
    const uint64_t b = RowTile::inner_rows_descriptor(ptx::shared_address(rows)) + stage * RowTile::kStageStep;
    ptx::pin_registers(left_);
    if constexpr (kRightColumns > 0) ptx::pin_registers(right_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockM / 16; ++k) {
      const uint64_t a_step = a + ScoreTile::inner_rows_step(k), b_step = b + RowTile::inner_rows_step(k);
      ptx::Wgmma<Config::kType, kLeftColumns>::template ss<1, 1>(left_, a_step, b_step, 1);
      if constexpr (kRightColumns > 0) {
        ptx::Wgmma<Config::kType, kRightColumns>::template ss<1, 1>(right_, a_step, b_step + 2 * RowTile::kPanelStep,
                                                                    1);
      }
    }
    ptx::wgmma_commit_group();
  }

  float left_[kLeftColumns / 2];
  float right_[kRightColumns > 0 ? kRightColumns / 2 : 1];
};

}  // namespace warpgrad::cuda::sm90
