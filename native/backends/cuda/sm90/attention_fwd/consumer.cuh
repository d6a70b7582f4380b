#pragma once

#include <type_traits>

#include "backends/cuda/sm90/attention_fwd/epilogue.cuh"
#include "backends/cuda/sm90/attention_fwd/softmax.cuh"
#include "backends/cuda/sm90/attention_fwd/storage.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// One warpgroup: 64 rows of every tile. The order of its work, with a product of the next step always in flight, runs
// on from one tile to the next; README.md draws it.
template <class Config>
class AttentionFwdConsumer {
 public:
  using Params = AttentionFwdKernelParams;
  using Storage = AttentionFwdStorage<Config>;
  using Stages = Ring<Config::kStages>;
  using Slots = Ring<kWorkSlots>;

  __device__ __forceinline__ AttentionFwdConsumer(Storage& storage, const Params& params, int warpgroup_idx)
      : storage_(storage),
        params_(params),
        warpgroup_idx_(warpgroup_idx),
        lane_idx_(threadIdx.x % kWarpThreads),
        softmax_(params) {}

  __device__ __forceinline__ void run() {
    if constexpr (Config::kTile.take_turns) {
      if (warpgroup_idx_ == Config::kConsumerWarpgroups - 1) {
        ptx::bar_arrive(kBarrierTurn, 2 * kWarpgroupThreads);  // the first turn is the first warpgroup's
      }
    }
    clear_output();

    const AttentionFwdWork* work = next_work();
    load_query();
    wait_for_keys();
    take_turn();
    issue_scores();
    pass_turn();
    ptx::wgmma_wait_group<0>();
    softmax_.reset();
    int n = uniform(work->n_last);
    const bool last = n == uniform(work->n_first);
    exponentiate_scores(*work, n, last, is_masked(*work, n));
    round_probabilities();
    if (last) finish_single(*work);

    --n;
    while (true) {
      // Two rounds: the masked tiles at the right edge and the full ones, then the masked ones at the left edge.
      const int n_first = uniform(work->n_first);
      const int n_full_first = uniform(work->n_full_first);
      const int n_full_last = uniform(work->n_full_last);
#pragma unroll 1
      while (n >= n_first) {
#pragma unroll 1
        for (; n >= n_first && (n > n_full_last || n < n_full_first); --n) step<true>(*work, n, n == n_first);
#pragma unroll 1
        for (; n >= n_full_first; --n) step<false>(*work, n, n == n_first);
      }
      const AttentionFwdWork* following = next_work();
      if (following == nullptr) break;
      change_tile(*work, *following);
      n = uniform(following->n_last) - 1;
      release(&storage_.bar_work_empty[Slots::stage(num_tiles_ - 2)]);  // that of `work`
      work = following;
    }

    wait_for_values();
    take_turn();
    issue_output();
    pass_turn();
    await_store_space();
    float factor[2];
    finish_rows(*work, factor);
    finish_output(num_keys_ - 1);
    store(*work, factor);
    if constexpr (Config::kTile.out_through_smem) ptx::bulk_wait_group<0>();
  }

 private:
  // Q Kᵀ of key tile n and, behind it, P V of the tile before, whose softmax is done; then the softmax of n.
  template <bool kMasked>
  __device__ __forceinline__ void step(const AttentionFwdWork& work, int n, bool last) {
    wait_for_keys();
    take_turn();
    issue_scores();
    wait_for_values();
    issue_output();
    pass_turn();
    ptx::wgmma_wait_group<1>();
    exponentiate_scores(work, n, last, kMasked);
    finish_output(num_keys_ - 2);
    round_probabilities();
    if constexpr (Config::kTile.take_turns) rescale_output();
  }

  // The same across two tiles: the last P V of `work` runs behind the first Q Kᵀ and under the softmax of `following`.
  __device__ __forceinline__ void change_tile(const AttentionFwdWork& work, const AttentionFwdWork& following) {
    load_query();
    wait_for_keys();
    take_turn();
    issue_scores();
    wait_for_values();
    issue_output();
    pass_turn();
    await_store_space();
    float factor[2];
    finish_rows(work, factor);
    softmax_.reset();
    ptx::wgmma_wait_group<1>();
    const int n = uniform(following.n_last);
    const bool last = n == uniform(following.n_first);
    exponentiate_scores(following, n, last, is_masked(following, n));
    finish_output(num_keys_ - 2);
    store(work, factor);
    round_probabilities();
    clear_output();
    if (last) finish_single(following);
  }

  // Writes lse, unless finish_single has.
  __device__ __forceinline__ void finish_rows(const AttentionFwdWork& work, float (&factor)[2]) {
    const ThreadRows rows = rows_of(work);
    const RowTotals totals = row_totals<Config>(params_, rows, softmax_);
    output_factors(totals, factor);
    if (work.n_first < work.n_last) write_lse(params_, work, rows, totals);
  }

  // After the only key tile of `work`: where few keys share a row, the errors of rounding their probabilities show, and
  // less of them is left when the output is divided by the sum of the rounded ones.
  __device__ __forceinline__ void finish_single(const AttentionFwdWork& work) {
    const ThreadRows rows = rows_of(work);
    write_lse(params_, work, rows, row_totals<Config>(params_, rows, softmax_));
    softmax_.sum_rounded(frag_p_);
  }

  __device__ __forceinline__ static bool is_masked(const AttentionFwdWork& work, int n) {
    return n > uniform(work.n_full_last) || n < uniform(work.n_full_first);
  }

  // The scores of key tile n have arrived: gives K back and, with the tile's last scores, Q.
  __device__ __forceinline__ void exponentiate_scores(const AttentionFwdWork& work, int n, bool last, bool masked) {
    ptx::pin_registers(accum_s_);
    release(&storage_.bar_k_empty[Stages::stage(num_keys_)]);
    ++num_keys_;
    if constexpr (!Config::kTile.query_in_registers) {
      if (last) release(&storage_.bar_q_empty[warpgroup_idx_]);
    }
    if constexpr (Config::kMappedScores) softmax_.map(accum_s_);
    if (masked) softmax_.mask(accum_s_, work, rows_of(work), n);
    softmax_.step(accum_s_);
    ptx::pin_registers(accum_s_);
  }

  // Tells ptxas that the warp agrees on the value: loop bounds from memory would make the ring counters, and with them
  // the descriptors of every product, per-thread values.
  __device__ __forceinline__ static int uniform(int value) { return __shfl_sync(~0u, value, 0); }

  // The tile after the current one, or null.
  __device__ __forceinline__ const AttentionFwdWork* next_work() {
    const uint32_t slot = Slots::stage(num_tiles_);
    ptx::mbarrier_wait(&storage_.bar_work_full[slot], Slots::parity(num_tiles_));
    const AttentionFwdWork* work = &storage_.work[slot];
    if (uniform(work->n_last) < 0) return nullptr;
    ++num_tiles_;
    return work;
  }

  __device__ __forceinline__ ThreadRows rows_of(const AttentionFwdWork& work) const {
    return thread_rows(params_, work, warpgroup_idx_);
  }
  // A slot is given back once a warp: cheaper than gathering the warpgroup for one arrival.
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (lane_idx_ == 0) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void take_turn() {
    if constexpr (Config::kTile.take_turns) ptx::bar_sync(kBarrierTurn + warpgroup_idx_, 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Config::kTile.take_turns) {
      const int next = warpgroup_idx_ + 1 == Config::kConsumerWarpgroups ? 0 : warpgroup_idx_ + 1;
      ptx::bar_arrive(kBarrierTurn + next, 2 * kWarpgroupThreads);
    }
  }

  // Q of the tile that next_work() gave last.
  __device__ __forceinline__ void load_query() {
    ptx::mbarrier_wait(&storage_.bar_q_full[warpgroup_idx_], (num_tiles_ - 1) & 1);
    if constexpr (Config::kTile.query_in_registers) {
      using Tile = typename Config::QueryTile;
      const uint32_t tile_address = ptx::shared_address(storage_.smem_q[warpgroup_idx_].bytes);
      const int thread_idx = ptx::read_thread_idx(), lane_idx = thread_idx % kWarpThreads;
      const int row = thread_idx / kWarpThreads % 4 * 16 + lane_idx % 16;
#pragma unroll
      for (int k = 0; k < Config::kQkDim / 16; ++k) {
        ptx::ldmatrix_x4(Tile::chunk_address(tile_address, row, 2 * k + lane_idx / 16), frag_q_ + 4 * k);
      }
      __syncwarp();
      release(&storage_.bar_q_empty[warpgroup_idx_]);
    }
  }

  __device__ __forceinline__ void wait_for_keys() {
    ptx::mbarrier_wait(&storage_.bar_k_full[Stages::stage(num_keys_)], Stages::parity(num_keys_));
  }
  __device__ __forceinline__ void wait_for_values() {
    ptx::mbarrier_wait(&storage_.bar_v_full[Stages::stage(num_keys_ - 1)], Stages::parity(num_keys_ - 1));
  }

  __device__ __forceinline__ void issue_scores() {
    using Tile = typename Config::KeyTile;
    using Product = ptx::Wgmma<Config::kType, Config::kBlockN>;
    const uint64_t k_tile = Tile::inner_columns_descriptor(ptx::shared_address(storage_.smem_k[0].bytes)) +
                            Stages::stage(num_keys_) * Tile::kStageStep;
    ptx::pin_registers(accum_s_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kQkDim / 16; ++k) {
      if constexpr (Config::kTile.query_in_registers) {
        Product::template rs<0>(accum_s_, frag_q_ + 4 * k, k_tile + Tile::inner_columns_step(k), k > 0);
      } else {
        using QueryTile = typename Config::QueryTile;
        const uint64_t q_tile = QueryTile::inner_columns_descriptor(ptx::shared_address(storage_.smem_q[0].bytes)) +
                                warpgroup_idx_ * QueryTile::kStageStep;
        Product::template ss<0, 0>(accum_s_, q_tile + QueryTile::inner_columns_step(k),
                                   k_tile + Tile::inner_columns_step(k), k > 0);
      }
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void issue_output() {
    // As late as this the product of the scores hides it; in a turn it would hold the other warpgroups up.
    if constexpr (!Config::kTile.take_turns) rescale_output();
    using Tile = typename Config::ValueTile;
    using Product = ptx::Wgmma<Config::kType, Config::kVDim>;
    const uint64_t v_tile = Tile::inner_rows_descriptor(ptx::shared_address(storage_.smem_v[0].bytes)) +
                            Stages::stage(num_keys_ - 1) * Tile::kStageStep;
    ptx::pin_registers(frag_p_);
    ptx::pin_registers(accum_o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlockN / 16; ++k) {
      Product::template rs<1>(accum_o_, frag_p_ + 4 * k, v_tile + Tile::inner_rows_step(k), 1);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void finish_output(uint32_t count) {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_o_);
    ptx::pin_registers(frag_p_);
    release(&storage_.bar_v_empty[Stages::stage(count)]);
  }

  // The accumulator's layout in pairs is that of the A operand.
  __device__ __forceinline__ void round_probabilities() {
#pragma unroll
    for (int i = 0; i < Config::kProbabilityRegisters; ++i) {
      frag_p_[i] = ptx::cvt_pair<Config::kType>(accum_s_[2 * i], accum_s_[2 * i + 1]);
    }
  }

  // Before a tile's first P V.
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < Config::kOutRegisters; ++i) accum_o_[i] = 0;
  }

  // To the maximum of the exponentials that are added next.
  __device__ __forceinline__ void rescale_output() {
    if (!softmax_.grew) return;
#pragma unroll
    for (int i = 0; i < Config::kOutRegisters; ++i) accum_o_[i] *= softmax_.correction[row_of(i)];
  }

  // Before smem_out is written again. Well before, so that nobody waits.
  __device__ __forceinline__ void await_store_space() {
    if constexpr (Config::kTile.out_through_smem) {
      if (ptx::read_thread_idx() % kWarpgroupThreads == 0) ptx::bulk_wait_group_read<0>();
      ptx::bar_sync(kBarrierWarpgroup + warpgroup_idx_, kWarpgroupThreads);
    }
  }

  __device__ __forceinline__ void store(const AttentionFwdWork& work, const float (&factor)[2]) {
    if constexpr (Config::kTile.out_through_smem) {
      store_through_smem<Config>(storage_, params_, work, warpgroup_idx_, accum_o_, factor);
    } else {
      store_directly<Config>(params_, work, rows_of(work), accum_o_, factor);
    }
  }

  Storage& storage_;
  const Params& params_;
  const int warpgroup_idx_;
  const int lane_idx_;

  float accum_s_[Config::kScoreRegisters];
  float accum_o_[Config::kOutRegisters];
  uint32_t frag_p_[Config::kProbabilityRegisters];
  uint32_t frag_q_[Config::kTile.query_in_registers ? Config::kQueryRegisters : 1];

  OnlineSoftmax<Config> softmax_;
  uint32_t num_keys_ = 0;   // key tiles that are done with; value tiles are one behind
  uint32_t num_tiles_ = 0;  // tiles begun
};

}  // namespace warpgrad::cuda::sm90
