#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/sm90/attention_bwd/main/dq_adder.cuh"
#include "backends/cuda/sm90/attention_bwd/main/epilogue.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
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
  __device__ __forceinline__ uint32_t num_steps() const { return num_steps_; }
  __device__ __forceinline__ uint32_t parity() const { return Stages::parity(num_steps_); }

  Storage& storage_;
  const Params& params_;

 private:
  __device__ __forceinline__ Role& role() { return static_cast<Role&>(*this); }

  __device__ __forceinline__ void walk(const AttentionBwdWork& work) {
    const int m_first = uniform(work.m_first), m_last = uniform(work.m_last);
    if (m_first > m_last) return;
    int head_block = uniform(work.row_block);
    const int num_heads = uniform(work.num_heads);
    role().template step<true>(work, m_first, head_block + m_first);
    ++num_steps_;
    int m = m_first + 1;
#pragma unroll 1
    for (int head = 0; head < num_heads; ++head) {
#pragma unroll 1
      for (; m <= m_last; ++m) {
        role().template step<false>(work, m, head_block + m);
        ++num_steps_;
      }
      head_block += params_.row_blocks;
      m = m_first;
    }
    role().end_steps();
  }

  uint32_t num_steps_ = 0;  // done
};

// S = Q Kᵀ and dP = dO Vᵀ of 64 queries and 64 keys, and from them P and dS. A thread holds, of the two queries lane /
// 4 and lane / 4 + 8 of its warp's sixteen, the keys 8 j + 2 (lane % 4) + {0, 1}: elements 4 j + {0, 1} and 4 j + {2,
// 3}.
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
  __device__ __forceinline__ void end_steps() {}
  __device__ __forceinline__ void end_tile(const AttentionBwdWork& work) { release(&storage_.bar_kv_empty); }

  template <bool kFirst>
  __device__ __forceinline__ void step(const AttentionBwdWork& work, int m, int row_block) {
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
      for (int j = 0; j < 2; ++j) {
        float& s = accum_s[2 * i + j];
        if constexpr (Config::kMappedScores) {
          s = fmaf(-2, ptx::rcp_approx(1 + ptx::ex2_approx(s * params_.map_scale)), 1);
        }
        // At most 1: where scores are large, the rounding of lse alone could make the exponent more than float32 holds.
        p[j] = ptx::ex2_approx(ptx::min_nan(fmaf(s, params_.exp2_scale, -lse[i & 1]), 0));
        s = Config::kMappedScores ? p[j] * fmaf(-s, s, 1) : p[j];
      }
      fragment[i] = ptx::cvt_pair<Config::kType>(p[0], p[1]);
    }
  }

  // Sets P to 0 where the key is not visible. Selected, not multiplied: such a score may be anything.
  __device__ __forceinline__ void mask(float (&accum_s)[Config::kScoreRegisters],
                                       uint32_t (&fragment)[Config::kFragmentRegisters], const AttentionBwdWork& work,
                                       int m) const {
    const int first_query = m * Config::kBlockM + first_row_ + threadIdx.x % kWarpThreads / 4;
    const int first_key = work.n * Config::kBlockN + 2 * (threadIdx.x % 4);
    const int low = first_query + work.key_shift_low - first_key;
    const int high = first_query + work.key_shift_high - first_key, end = work.k_len - first_key;
#pragma unroll
    for (int i = 0; i < Config::kFragmentRegisters; ++i) {
      const int row = 8 * (i & 1), column = 8 * (i / 2);
      bool visible[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        visible[j] = column + j >= low + row && column + j <= high + row && column + j < end;
        if (!visible[j]) accum_s[2 * i + j] = 0;
      }
      fragment[i] &= (visible[0] ? 0x0000ffffu : 0) | (visible[1] ? 0xffff0000u : 0);
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

// Sums up dV = Pᵀ dO or dK = dSᵀ Q of 64 keys, and computes some of the parts of dQ = dS K.
template <class Config, bool kOfValues>
class AttentionBwdGradient : public AttentionBwdRole<Config, AttentionBwdGradient<Config, kOfValues>> {
  using Base = AttentionBwdRole<Config, AttentionBwdGradient<Config, kOfValues>>;
  using Base::params_;
  using Base::release;
  using Base::storage_;
  using typename Base::KeyTile;
  using typename Base::ScoreTile;
  using RowTile = std::conditional_t<kOfValues, typename Base::OutTile, typename Base::QueryTile>;
  static constexpr int kColumns = kOfValues ? Config::kVDim : Config::kQkDim;
  // Two products side by side: ptxas has 128 registers for an instruction here, not enough for 256 columns.
  static constexpr int kLeftColumns = 2 * kPanelColumns, kRightColumns = kColumns - kLeftColumns;
  static constexpr int kAdder = kOfValues ? 0 : 1;
  // The first gets the larger share of the parts of dQ: it never has more columns.
  static constexpr int kValuesParts = (Config::kDqParts + 1) / 2;
  static constexpr int kFirstPart = kOfValues ? 0 : kValuesParts;
  static constexpr int kParts = kOfValues ? kValuesParts : Config::kDqParts - kValuesParts;
  static_assert(kParts == 1 || kParts == 2);
  static_assert(Config::kStages == 2);
  using DqProduct = ptx::Wgmma<Config::kType, kPanelColumns>;

 public:
  __device__ __forceinline__ AttentionBwdGradient(typename Base::Storage& storage, const typename Base::Params& params)
      : Base(storage, params) {}

  __device__ __forceinline__ void begin_tile() {
#pragma unroll
    for (float& value : left_) value = 0;
#pragma unroll
    for (float& value : right_) value = 0;
  }
  __device__ __forceinline__ void end_steps() {
    add_first_part();
    ptx::wgmma_wait_group<0>();
    add_second_part();
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

  template <bool kFirst>
  __device__ __forceinline__ void step(const AttentionBwdWork& work, int m, int row_block) {
    const uint32_t stage = this->stage(), parity = this->parity();
    uint64_t* rows_full = kOfValues ? storage_.bar_d_out_full : storage_.bar_q_full;
    ptx::mbarrier_wait(&rows_full[stage], parity);
    ptx::mbarrier_wait(&(kOfValues ? storage_.bar_p_full : storage_.bar_ds_full)[stage], parity);
    issue_sum(stage);
    // Under the sum, dQ of the step before: its turn to be added need not have come earlier.
    if constexpr (!kFirst) add_first_part();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(left_);
    if constexpr (kRightColumns > 0) ptx::pin_registers(right_);
    release(&(kOfValues ? storage_.bar_d_out_empty : storage_.bar_q_empty)[stage]);
    if constexpr (kOfValues) release(&storage_.bar_p_empty[stage]);
    if constexpr (!kFirst) add_second_part();

    if constexpr (kOfValues) ptx::mbarrier_wait(&storage_.bar_ds_full[stage], parity);
    issue_dq(kFirstPart, stage);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dq_);
    dq_row_block_ = row_block;
  }

 private:
  // Of dQ of the step before, whose first part has been computed: adds it and issues the other, if there is one.
  __device__ __forceinline__ void add_first_part() {
    await_dq_turn(storage_, params_, kAdder, this->num_steps() - 1);
    add_dq<Config>(params_, accum_dq_, dq_row_block_, kFirstPart);
    if constexpr (kParts == 2) issue_dq(kFirstPart + 1, this->stage() ^ 1);
  }
  __device__ __forceinline__ void add_second_part() {
    ptx::pin_registers(accum_dq_);
    release(&storage_.bar_ds_empty[this->stage() ^ 1]);
    if constexpr (kParts == 2) add_dq<Config>(params_, accum_dq_, dq_row_block_, kFirstPart + 1);
    end_dq_turn(storage_, params_, kAdder);
  }

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

  // 64 columns of dQ.
  __device__ __forceinline__ void issue_dq(int part, uint32_t stage) {
    const uint64_t a = ScoreTile::inner_columns_descriptor(ptx::shared_address(storage_.smem_ds[0].bytes)) +
                       stage * ScoreTile::kStageStep;
    const uint64_t b =
        KeyTile::inner_rows_descriptor(ptx::shared_address(storage_.smem_k.bytes)) + part * KeyTile::kPanelStep;
    ptx::pin_registers(accum_dq_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockN / 16; ++k) {
      DqProduct::template ss<0, 1>(accum_dq_, a + ScoreTile::inner_columns_step(k), b + KeyTile::inner_rows_step(k),
                                   k > 0);
    }
    ptx::wgmma_commit_group();
  }

  float left_[kLeftColumns / 2];
  float right_[kRightColumns > 0 ? kRightColumns / 2 : 1];
  float accum_dq_[Config::kDqRegisters];
  int dq_row_block_;  // of the step before
};

}  // namespace warpgrad::cuda::sm90
