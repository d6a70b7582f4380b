#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/main/dq_adder.cuh"
#include "backends/cuda/sm90/attention_bwd/main/epilogue.cuh"
#include "backends/cuda/sm90/attention_bwd/main/storage.cuh"
#include "backends/cuda/sm90/attention_bwd/probability.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// One warpgroup: 64 keys of every tile. Scores are transposed, Sᵀ [64 keys x kBlockM queries]: a thread holds, of the
// two keys lane / 4 and lane / 4 + 8 of its warp's sixteen, the queries 8 j + 2 (lane % 4) + {0, 1}: elements
// 4 j + {0, 1} and 4 j + {2, 3}. README.md draws the order of its work.
template <class Config>
class AttentionBwdByKeys {
 public:
  using Params = AttentionBwdKernelParams;
  using Storage = AttentionBwdStorage<Config>;
  using Stages = Ring<Config::kStages>;
  using Slots = Ring<kBwdWorkSlots>;
  using QueryTile = typename Config::QueryTile;
  using KeyTile = typename Config::KeyTile;
  using ScoreTile = typename Config::ScoreTile;
  static constexpr int kGradRegisters = Config::kQkDim / 2;  // float32, 64 keys x kQkDim
  using ScoreProduct = ptx::Wgmma<Config::kType, Config::kBlockM>;
  using DqProduct = ptx::Wgmma<Config::kType, Config::kDqRows>;
  using GradProduct = ptx::Wgmma<Config::kType, Config::kQkDim>;

  __device__ __forceinline__ AttentionBwdByKeys(Storage& storage, const Params& params, int warpgroup_idx)
      : storage_(storage),
        params_(params),
        warpgroup_idx_(warpgroup_idx),
        lane_idx_(threadIdx.x % kWarpThreads),
        warp_idx_(threadIdx.x / kWarpThreads % 4) {}

  __device__ __forceinline__ void run() {
    // The first turn is the first warpgroup's.
    if (warpgroup_idx_ == 1) ptx::bar_arrive(kBwdBarrierTurn, 2 * kWarpgroupThreads);
    for (;; ++num_tiles_) {
      const uint32_t slot = Slots::stage(num_tiles_);
      ptx::mbarrier_wait(&storage_.bar_work_full[slot], Slots::parity(num_tiles_));
      const AttentionBwdWork& work = storage_.work[slot];
      if (uniform(work.n) < 0) break;
      ptx::mbarrier_wait(&storage_.bar_kv_full, num_tiles_ & 1);
#pragma unroll
      for (int i = 0; i < kGradRegisters; ++i) accum_dk_[i] = accum_dv_[i] = 0;
      if (uniform(work.m_first) <= uniform(work.m_last)) walk(work);
      release(&storage_.bar_kv_empty);
      const int first_row = warpgroup_idx_ * kWarpgroupRows;
      store_rows<Config>(params_, work, first_row, accum_dv_, 1.0f, values_target(params_));
      store_rows<Config>(params_, work, first_row, accum_dk_, params_.scale, keys_target(params_));
      release(&storage_.bar_work_empty[slot]);
    }
  }

 private:
  // Every query of every head of the group that sees these keys.
  __device__ __forceinline__ void walk(const volatile AttentionBwdWork& work) {
    row_block_ = uniform(work.row_block) + uniform(work.m_first);
#pragma unroll 1
    while (true) {
      walk_head(work);
      const bool last_head = row_block_ > uniform(work.last_row_block);
      float accum_dq[Config::kDqRegisters];
      issue_dq(accum_dq);
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(accum_dq);
      add_dq_of_previous(accum_dq);
      release(&storage_.bar_ds_empty[Stages::stage(num_steps_ - 1)]);
      if (last_head) break;
      row_block_ += uniform(work.head_step);
    }
  }

  // NOTE: the bounds stay in shared memory, and what follows from them is worked out anew where a run of steps of one
  // kind ends: the registers have no room for it.
  __device__ __forceinline__ void walk_head(const volatile AttentionBwdWork& work) {
    step<true, true>(work, row_block_ - uniform(work.m_first));
    int run_end = row_block_;
    int masked_head_block;  // the head's block 0; -1 where no mask is needed
#pragma unroll 1
    while (true) {
      if (row_block_ == run_end) {
        const int row_blocks = params_.row_blocks, base = uniform(work.row_block);
        const int head_block = base + (row_block_ - 1 - base) / row_blocks * row_blocks;
        const int end = head_block + uniform(work.m_last) + 1;
        if (row_block_ == end) break;
        const int full_first = head_block + uniform(work.m_full_first),
                  full_end = head_block + uniform(work.m_full_end);
        const bool masked = row_block_ < full_first || row_block_ >= full_end;
        run_end = !masked ? full_end : row_block_ < full_first ? full_first : end;
        masked_head_block = masked ? head_block : -1;
      }
      if (masked_head_block >= 0) {
        step<true, false>(work, masked_head_block);
      } else {
        step<false, false>(work, 0);
      }
    }
  }

  // One block of queries: S and dP, then the products that take P and dS. dQ is that of the step before, so that the
  // warpgroups, which share dS, need not be in step; the first step of a head has none.
  template <bool kMasked, bool kFirst>
  __device__ __forceinline__ void step(const volatile AttentionBwdWork& work, int head_block) {
    // Keeps what follows from it out of registers across steps; there are none left.
    asm volatile("" : "+r"(warpgroup_idx_));
    const uint32_t stage = Stages::stage(num_steps_), parity = Stages::parity(num_steps_);
    float accum_s[Config::kScoreRegisters], accum_dp[Config::kScoreRegisters];
    uint32_t frag_p[Config::kFragmentRegisters], frag_ds[Config::kFragmentRegisters];

    ptx::mbarrier_wait(&storage_.bar_q_full[stage], parity);
    ptx::bar_sync(kBwdBarrierTurn + warpgroup_idx_, 2 * kWarpgroupThreads);
    issue_scores(accum_s, storage_.smem_k.bytes, storage_.smem_q[0].bytes, stage);
    ptx::mbarrier_wait(&storage_.bar_d_out_full[stage], parity);
    issue_scores(accum_dp, storage_.smem_v.bytes, storage_.smem_d_out[0].bytes, stage);

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(accum_s);
    probabilities<kMasked>(accum_s, frag_p, work, head_block, stage);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dp);
    ptx::bar_arrive(kBwdBarrierTurn + 1 - warpgroup_idx_, 2 * kWarpgroupThreads);
    score_gradients(accum_s, accum_dp, frag_ds, stage);

    ptx::mbarrier_wait(&storage_.bar_ds_empty[stage], parity ^ 1);
    share_score_gradients(frag_ds, stage);
    issue_gradient(accum_dv_, frag_p, storage_.smem_d_out[0].bytes, stage);
    float accum_dq[Config::kDqRegisters];
    if constexpr (!kFirst) issue_dq(accum_dq);
    ptx::wgmma_wait_group<kFirst ? 0 : 1>();
    ptx::pin_registers(accum_dv_);
    ptx::pin_registers(frag_p);
    ptx::mbarrier_arrive(&storage_.bar_d_out_empty[stage]);

    issue_gradient(accum_dk_, frag_ds, storage_.smem_q[0].bytes, stage);
    if constexpr (!kFirst) {
      ptx::wgmma_wait_group<1>();
      ptx::pin_registers(accum_dq);
      release(&storage_.bar_ds_empty[stage ^ 1]);
      add_dq_of_previous(accum_dq);
    }
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dk_);
    ptx::pin_registers(frag_ds);
    ptx::mbarrier_arrive(&storage_.bar_q_empty[stage]);
    ++num_steps_;
    ++row_block_;
  }

  // Tells ptxas that the warp agrees on the value: loop bounds from memory would make the ring counters, and with them
  // the descriptors of every product, per-thread values.
  __device__ __forceinline__ static int uniform(int value) { return __shfl_sync(~0u, value, 0); }

  // A slot is given back once a warp: cheaper than gathering the warpgroup for one arrival.
  __device__ __forceinline__ void release(uint64_t* barrier) { ptx::mbarrier_arrive_once(barrier); }

  // Sᵀ = K Qᵀ, dPᵀ = V dOᵀ.
  __device__ __forceinline__ void issue_scores(float (&accum)[Config::kScoreRegisters], const uint8_t* keys,
                                               const uint8_t* queries, uint32_t stage) {
    const uint64_t a = KeyTile::inner_columns_descriptor(ptx::shared_address(keys)) +
                       warpgroup_idx_ * KeyTile::rows_step(kWarpgroupRows);
    const uint64_t b =
        QueryTile::inner_columns_descriptor(ptx::shared_address(queries)) + stage * QueryTile::kStageStep;
    ptx::pin_registers(accum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kQkDim / 16; ++k) {
      ScoreProduct::template ss<0, 0>(accum, a + KeyTile::inner_columns_step(k), b + QueryTile::inner_columns_step(k),
                                      k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // dV += Pᵀ dO, dK += dSᵀ Q, the left operand from registers.
  __device__ __forceinline__ void issue_gradient(float (&accum)[kGradRegisters],
                                                 uint32_t (&frag)[Config::kFragmentRegisters], const uint8_t* queries,
                                                 uint32_t stage) {
    const uint64_t b = QueryTile::inner_rows_descriptor(ptx::shared_address(queries)) + stage * QueryTile::kStageStep;
    ptx::pin_registers(frag);
    ptx::pin_registers(accum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockM / 16; ++k) {
      GradProduct::template rs<1>(accum, frag + 4 * k, b + QueryTile::inner_rows_step(k), 1);
    }
    ptx::wgmma_commit_group();
  }

  // dQᵀ = Kᵀ dSᵀ of the step before: this warpgroup's 64 columns of dQ, or its half of the rows where there are
  // only 64.
  __device__ __forceinline__ void issue_dq(float (&accum)[Config::kDqRegisters]) {
    const uint32_t count = num_steps_ - 1, stage = Stages::stage(count);
    ptx::mbarrier_wait(&storage_.bar_ds_full[stage], Stages::parity(count));
    const uint64_t a = KeyTile::inner_rows_descriptor(ptx::shared_address(storage_.smem_k.bytes)) +
                       (Config::kDqSplitRows ? 0 : warpgroup_idx_ * KeyTile::kPanelStep);
    const uint64_t b = ScoreTile::inner_columns_descriptor(ptx::shared_address(storage_.smem_ds[0].bytes)) +
                       stage * ScoreTile::kStageStep +
                       (Config::kDqSplitRows ? warpgroup_idx_ * ScoreTile::rows_step(Config::kDqRows) : 0);
    ptx::pin_registers(accum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockN / 16; ++k) {
      DqProduct::template ss<1, 0>(accum, a + KeyTile::inner_rows_step(k), b + ScoreTile::inner_columns_step(k), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void add_dq_of_previous(const float (&accum)[Config::kDqRegisters]) {
    await_dq_turn(storage_, params_, warpgroup_idx_, num_steps_ - 1);
    add_dq<Config>(params_, accum, row_block_ - 1, warpgroup_idx_);
    end_dq_turn(storage_, params_, warpgroup_idx_);
  }

  // The queries of the step's block that this thread's first key is visible to, counted from the thread's first query.
  // Those of its second key, 8 further on, are 8 further on.
  struct VisibleQueries {
    int low, high;
    bool second;  // whether there is a second key
  };
  __device__ __forceinline__ VisibleQueries visible_queries(const volatile AttentionBwdWork& work, int m) const {
    const int first_query = m * Config::kBlockM + 2 * (lane_idx_ % 4);
    const int key = work.n * Config::kBlockN + warpgroup_idx_ * kWarpgroupRows + warp_idx_ * 16 + lane_idx_ / 4;
    const int keys_left = work.k_len - key;
    return {key - work.key_shift_high - first_query, keys_left > 0 ? key - work.key_shift_low - first_query : -9,
            keys_left > 8};
  }
  __device__ __forceinline__ static bool sees(const VisibleQueries& visible, int i) {
    const bool second = i >> 1 & 1;
    const int query = 8 * (i / 4) + (i & 1) - (second ? 8 : 0);
    return query >= visible.low && query <= visible.high && (!second || visible.second);
  }

  // P = exp(S - lse), left in accum_s for dS (with softcap: times the derivative of the tanh) and rounded for dV.
  template <bool kMasked>
  __device__ __forceinline__ void probabilities(float (&accum_s)[Config::kScoreRegisters],
                                                uint32_t (&frag_p)[Config::kFragmentRegisters],
                                                const volatile AttentionBwdWork& work, int head_block, uint32_t stage) {
    const uint32_t lse = ptx::shared_address(storage_.lse_log2[stage]) + 8 * (lane_idx_ % 4);
    VisibleQueries visible;
    if constexpr (kMasked) visible = visible_queries(work, row_block_ - head_block);
#pragma unroll
    for (int j = 0; j < Config::kBlockM / 8; ++j) {
      const float2 lse_pair = ptx::ld_shared_v2(lse + 32 * j);
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = accum_s[4 * j + i];
        p[i] = exponentiate_score<Config>(s, (i & 1) ? lse_pair.y : lse_pair.x, params_);
        // Selected, not multiplied: a row that sees only other keys may have any lse.
        if constexpr (kMasked) {
          if (!sees(visible, 4 * j + i)) p[i] = s = 0;
        }
      }
      frag_p[2 * j] = ptx::cvt_pair<Config::kType>(p[0], p[1]);
      frag_p[2 * j + 1] = ptx::cvt_pair<Config::kType>(p[2], p[3]);
    }
  }

  // dS = P (dP - delta), without the scale of q·k.
  __device__ __forceinline__ void score_gradients(const float (&accum_s)[Config::kScoreRegisters],
                                                  const float (&accum_dp)[Config::kScoreRegisters],
                                                  uint32_t (&frag_ds)[Config::kFragmentRegisters], uint32_t stage) {
    const uint32_t delta = ptx::shared_address(storage_.delta[stage]) + 8 * (lane_idx_ % 4);
#pragma unroll
    for (int j = 0; j < Config::kBlockM / 8; ++j) {
      const float2 delta_pair = ptx::ld_shared_v2(delta + 32 * j);
      float ds[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ds[i] = accum_s[4 * j + i] * (accum_dp[4 * j + i] - ((i & 1) ? delta_pair.y : delta_pair.x));
      }
      frag_ds[2 * j] = ptx::cvt_pair<Config::kType>(ds[0], ds[1]);
      frag_ds[2 * j + 1] = ptx::cvt_pair<Config::kType>(ds[2], ds[3]);
    }
  }

  // dSᵀ to shared memory as [query][key], for dQ.
  __device__ __forceinline__ void share_score_gradients(const uint32_t (&frag_ds)[Config::kFragmentRegisters],
                                                        uint32_t stage) {
    const int matrix = lane_idx_ / 8;
    const uint32_t address =
        ScoreTile::chunk_address(ptx::shared_address(storage_.smem_ds[stage].bytes), 8 * (matrix / 2) + lane_idx_ % 8,
                                 warpgroup_idx_ * kWarpgroupRows / 8 + 2 * warp_idx_ + matrix % 2);
#pragma unroll
    for (int j = 0; j < Config::kBlockM / 8; j += 2) {
      ptx::stmatrix_x4_trans(address + j * 8 * kPanelRowBytes, frag_ds[2 * j], frag_ds[2 * j + 1], frag_ds[2 * j + 2],
                             frag_ds[2 * j + 3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    release(&storage_.bar_ds_full[stage]);
  }

  Storage& storage_;
  const Params& params_;
  int warpgroup_idx_;
  const int lane_idx_, warp_idx_;

  float accum_dk_[kGradRegisters];
  float accum_dv_[kGradRegisters];
  uint32_t num_steps_ = 0, num_tiles_ = 0;  // done with
  int row_block_ = 0;                       // of the next step, or of this one
};

}  // namespace warpgrad::cuda::sm90
