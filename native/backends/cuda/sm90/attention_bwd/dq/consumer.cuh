#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq/storage.cuh"
#include "backends/cuda/sm90/attention_bwd/probability.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"
#include "backends/cuda/sm90/tile/store_accumulator.cuh"

namespace warpgrad::cuda::sm90 {

// One warpgroup: dQ of a row block, over all keys that it sees.
template <class Config>
class AttentionBwdDqConsumer {
 public:
  using Params = AttentionBwdDqParams;
  using Storage = AttentionBwdDqStorage<Config>;
  using KeyStages = Ring<Config::kDqKeyStages>;
  using ValueStages = Ring<Config::kDqValueStages>;
  using QueryTile = typename Config::QueryTile;
  using OutTile = typename Config::OutTile;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;
  using ScoreProduct = ptx::Wgmma<Config::kType, Config::kBlockN>;
  using DqProduct = ptx::Wgmma<Config::kType, Config::kQkDim>;

  __device__ __forceinline__ AttentionBwdDqConsumer(Storage& storage, const Params& params, int warpgroup_idx)
      : storage_(storage), params_(params), work_(storage.work), warpgroup_idx_(warpgroup_idx) {}

  __device__ __forceinline__ void run() {
    const int64_t first_row = static_cast<int64_t>(work_.row_block + warpgroup_idx_) * Config::kBlockM;
    read_rows(params_.problem.lse_log2 + first_row, lse_);
    read_rows(params_.problem.delta + first_row, delta_);
#pragma unroll
    for (float& value : accum_dq_) value = 0;
    const int n_first = uniform(work_.n_first), n_last = uniform(work_.n_last);
    ptx::mbarrier_wait(&storage_.bar_q_full[warpgroup_idx_], 0);
    step<true>(n_first);
#pragma unroll 1
    for (int n = n_first + 1; n <= n_last; ++n) step<false>(n);
    issue_dq();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dq_);
    store();
  }

 private:
  // Tells ptxas that the warp agrees on the value.
  __device__ __forceinline__ static int uniform(int value) { return __shfl_sync(~0u, value, 0); }

  __device__ __forceinline__ static void read_rows(const float* values, float (&rows)[2]) {
    const int row = threadIdx.x / kWarpThreads % 4 * 16 + threadIdx.x % kWarpThreads / 4;
    rows[0] = values[row];
    rows[1] = values[row + 8];
  }

  // dQ of the step before, S = Q Kᵀ and dP = dO Vᵀ; then dS = P (dP - delta), rounded.
  template <bool kFirst>
  __device__ __forceinline__ void step(int n) {
    const uint32_t k_stage = KeyStages::stage(num_steps_), v_stage = ValueStages::stage(num_steps_);
    if constexpr (!kFirst) issue_dq();
    ptx::mbarrier_wait(&storage_.bar_k_full[k_stage], KeyStages::parity(num_steps_));
    issue<QueryTile, KeyTile, Config::kQkDim>(accum_s_, storage_.smem_q[0].bytes, storage_.smem_k[0].bytes, k_stage);
    if constexpr (kFirst) ptx::mbarrier_wait(&storage_.bar_d_out_full[warpgroup_idx_], 0);
    ptx::mbarrier_wait(&storage_.bar_v_full[v_stage], ValueStages::parity(num_steps_));
    issue<OutTile, ValueTile, Config::kVDim>(accum_dp_, storage_.smem_d_out[0].bytes, storage_.smem_v[0].bytes,
                                             v_stage);

    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(accum_s_);
    if constexpr (!kFirst) finish_dq();
#pragma unroll
    for (int i = 0; i < Config::kScoreRegisters; ++i) {
      exponentiate_score<Config>(accum_s_[i], lse_[i >> 1 & 1], params_.problem);
    }
    if (n < uniform(work_.n_full_first) || n > uniform(work_.n_full_last)) mask(n);
    ptx::pin_registers(accum_s_);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_dp_);
    ptx::mbarrier_arrive_once(&storage_.bar_v_empty[v_stage]);
#pragma unroll
    for (int i = 0; i < Config::kFragmentRegisters; ++i) {
      const float row_delta = delta_[i & 1];
      frag_ds_[i] = ptx::cvt_pair<Config::kType>(accum_s_[2 * i] * (accum_dp_[2 * i] - row_delta),
                                                 accum_s_[2 * i + 1] * (accum_dp_[2 * i + 1] - row_delta));
    }
    ++num_steps_;
  }

  // Selected, not multiplied: a score that nobody sees may be anything.
  __device__ __forceinline__ void mask(int n) {
    const VisibleScores visible(work_, work_.q_first + warpgroup_idx_ * Config::kBlockM, n * Config::kBlockN);
#pragma unroll
    for (int i = 0; i < Config::kScoreRegisters; ++i) {
      if (!visible(i)) accum_s_[i] = 0;
    }
  }

  template <class RowTile, class ColumnTile, int kInner>
  __device__ __forceinline__ void issue(float (&accum)[Config::kScoreRegisters], const uint8_t* rows,
                                        const uint8_t* columns, uint32_t stage) {
    // Read anew, or ptxas keeps a descriptor for every product in registers.
    const int warpgroup_idx = uniform(ptx::read_thread_idx() / kWarpgroupThreads) - 1;
    const uint64_t a =
        RowTile::inner_columns_descriptor(ptx::shared_address(rows)) + warpgroup_idx * RowTile::kStageStep;
    const uint64_t b =
        ColumnTile::inner_columns_descriptor(ptx::shared_address(columns)) + stage * ColumnTile::kStageStep;
    ptx::pin_registers(accum);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
      ScoreProduct::template ss<0, 0>(accum, a + RowTile::inner_columns_step(k), b + ColumnTile::inner_columns_step(k),
                                      k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // dQ += dS K of the step before. The accumulator's layout in pairs is that of the A operand.
  __device__ __forceinline__ void issue_dq() {
    const uint64_t b = KeyTile::inner_rows_descriptor(ptx::shared_address(storage_.smem_k[0].bytes)) +
                       KeyStages::stage(num_steps_ - 1) * KeyTile::kStageStep;
    ptx::pin_registers(frag_ds_);
    ptx::pin_registers(accum_dq_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockN / 16; ++k) {
      DqProduct::template rs<1>(accum_dq_, frag_ds_ + 4 * k, b + KeyTile::inner_rows_step(k), 1);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void finish_dq() {
    ptx::pin_registers(accum_dq_);
    ptx::pin_registers(frag_ds_);
    ptx::mbarrier_arrive_once(&storage_.bar_k_empty[KeyStages::stage(num_steps_ - 1)]);
  }

  __device__ __forceinline__ void store() {
    const AttentionBwdKernelParams& problem = params_.problem;
    AccumulatorRows rows;
    const int thread_idx = ptx::read_thread_idx();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = work_.q_first + warpgroup_idx_ * Config::kBlockM + thread_idx / kWarpThreads % 4 * 16 +
                        thread_idx % kWarpThreads / 4 + 8 * i;
      rows.stored[i] = query < work_.q_len;
      rows.gmem[i] = static_cast<uint16_t*>(params_.dq) +
                     ((work_.dq_row + query) * problem.kv_heads * problem.group + work_.q_head) * problem.qk_dim;
      rows.factor[i] = problem.scale;
    }
    store_accumulator<Config::kType>(accum_dq_, rows, problem.qk_dim);
  }

  Storage& storage_;
  const Params& params_;
  const AttentionBwdDqWork& work_;
  const int warpgroup_idx_;

  float accum_s_[Config::kScoreRegisters], accum_dp_[Config::kScoreRegisters];
  float accum_dq_[Config::kQkDim / 2];
  uint32_t frag_ds_[Config::kFragmentRegisters];
  float lse_[2], delta_[2];  // of the thread's two rows
  uint32_t num_steps_ = 0;   // whose dS is made
};

}  // namespace warpgrad::cuda::sm90
