#pragma once

#include "backends/cuda/sm90/kda/reverse/block.cuh"
#include "backends/cuda/sm90/kda/reverse/storage.cuh"
#include "backends/cuda/sm90/kda/state_steps.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// The warpgroup that goes through the chunks. Everything is transposed, so that what one product makes is the left
// operand of the next as it lies in registers:
//
//   1  dEᵀ  = dOᵀ Aqk                 [64 values, 64 tokens]
//   2  dEᵀ += dSᵀ Krᵀ
//   3  dvᵀ  = dEᵀ T
//   4  dSᵀ  = dSᵀ diag(d) + dOᵀ Qd    [64 values, keys]
//   5  dSᵀ −= dvᵀ Kd
template <class Config>
class KdaReverseConsumer {
 public:
  using Storage = KdaReverseStorage<Config>;
  using Stage = KdaReverseStage<Config>;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;

  __device__ __forceinline__ KdaReverseConsumer(Storage& storage, const KdaReverseParams& params,
                                                const KdaReverseBlock& block)
      : storage_(storage), params_(params), block_(block) {
    const int lane_idx = threadIdx.x % kWarpThreads;
    const int warp_idx = __shfl_sync(~0u, threadIdx.x / kWarpThreads, 0);
    state_row_ = 16 * warp_idx + lane_idx % 16;
    state_chunk_ = lane_idx / 16;
    token_row_ = lane_idx / 16 * 8 + lane_idx % 8;
    token_chunk_ = 2 * warp_idx + lane_idx / 8 % 2;
    stages_address_ = ptx::shared_address(&storage.stages[0]);
    decay_address_ = ptx::shared_address(&storage.decay[0]) + lane_idx % 4 * 8;
  }

  __device__ __forceinline__ void run() {
    load_state(params_.d_final_states, block_.sequence.final_state);
    const int num_chunks = block_.sequence.num_chunks;
    if (num_chunks > 0) {
      start();
      for (int step = 0; step < num_chunks; ++step) run_step(step, num_chunks);
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(accum_d_state_);
    }
    store_state(params_.d_initial_states, block_.sequence.initial_state);
  }

 private:
  static constexpr DType kType = DType::kBFloat16;
  using TokenWgmma = ptx::Wgmma<kType, kKdaChunkRows>;
  using KeyWgmma = ptx::Wgmma<kType, Config::kKeys>;
  static constexpr int kTokenSteps = kKdaChunkRows / 16;  // of k16
  static constexpr int kPartSteps = Config::kPartPanels * kPanelColumns / 16, kPartFragments = 4 * kPartSteps;

  // NOTE: for the usual number of keys. With others ptxas serialises products beside states in steps, and here too
  // unless the thread's index is read anew (C7511).
  static constexpr bool kStateInSteps = Config::kKeys == 128;
  __device__ __forceinline__ void load_state(const KdaStates& states, int index) {
    const int head = block_.head, first_value = block_.first_value();
    if constexpr (kStateInSteps) {
      load_state_in_steps(accum_d_state_, states, index, head, first_value, ptx::read_thread_idx());
    } else {
      load_transposed_state(accum_d_state_, states, index, head, first_value);
    }
  }
  __device__ __forceinline__ void store_state(const KdaStates& states, int index) {
    const int head = block_.head, first_value = block_.first_value();
    if constexpr (kStateInSteps) {
      store_state_in_steps(accum_d_state_, states, index, head, first_value, ptx::read_thread_idx());
    } else {
      store_transposed_state(accum_d_state_, states, index, head, first_value);
    }
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (float& value : accum_values_) value = 0;
    const int rows = params_.chunks[block_.chunk(0)].rows;
    ptx::mbarrier_wait(&storage_.bar_full[0], 0);
    if constexpr (!Config::kTrianglesInStage) ptx::mbarrier_wait(&storage_.bar_aqk_full, 0);
    load_d_out();
    if (rows < kKdaChunkRows) clear_d_out_from(rows);
    multiply_d_out_aqk();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum_values_);
    convert_d_state(0);
    if constexpr (Config::kReadsDecayAhead) load_decay();
  }

  // Products 2 to 5 of one chunk, and 1 of the next. Those that form the chain from one dS to the next are 2, 3 and 5;
  // halves of 4 and product 1 fill the tensor cores while dE, dv and dS are converted.
  __device__ __forceinline__ void run_step(int step, int num_chunks) {
    // NOTE: ptxas cannot follow products in flight over the loop's edge, so the last one of the step before ends here.
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(frag_d_out_);
    ptx::pin_registers(accum_values_);
    if constexpr (!Config::kTrianglesInStage) ptx::mbarrier_arrive(&storage_.bar_aqk_empty);
    multiply_d_state_kr(0);
    ptx::pin_registers(accum_d_state_);
#pragma unroll
    for (int part = 1; part < Config::kParts; ++part) {  // the fragments' registers are needed again
      ptx::wgmma_wait_group<0>();
      store_d_state(part - 1);
      convert_d_state(part);
      multiply_d_state_kr(part);
    }
    ptx::bar_warp_sync();
    if constexpr (!Config::kReadsDecayAhead) load_decay();
    decay_d_state();
    multiply_d_out_qd<0>();
    ptx::bar_warp_sync();

    ptx::wgmma_wait_group<1>();  // dE is complete
    ptx::pin_registers(accum_values_);
    convert_values();
    if constexpr (!Config::kTrianglesInStage) ptx::mbarrier_wait(&storage_.bar_t_full, step & 1);
    multiply_de_t();
    multiply_d_out_qd<1>();
    ptx::bar_warp_sync();
    store_d_state(Config::kParts - 1);

    ptx::wgmma_wait_group<1>();  // dv is complete
    ptx::pin_registers(accum_values_);
    ptx::pin_registers(frag_values_);
    if constexpr (!Config::kTrianglesInStage) ptx::mbarrier_arrive(&storage_.bar_t_empty);
    // Asked early, because the answer takes a while.
    RingPosition<Config::kStages> next = ring_;
    next.advance();
    const bool may_go_on =
        step + 1 == num_chunks || ptx::mbarrier_test_wait(&storage_.bar_full[next.stage], next.parity);
    convert_values();
    multiply_dv_kd();
    ptx::bar_warp_sync();
    store_dv();
    ptx::bar_warp_sync();
    if (threadIdx.x % kWarpThreads == 0) ptx::mbarrier_arrive(&storage_.bar_out[ring_.stage]);
    uint64_t& bar_empty = storage_.bar_empty[ring_.stage];
    ring_ = next;
    if (!may_go_on) ptx::mbarrier_wait(&storage_.bar_full[ring_.stage], ring_.parity);
    if constexpr (!Config::kTrianglesInStage) {
      if (step + 1 < num_chunks) ptx::mbarrier_wait(&storage_.bar_aqk_full, (step + 1) & 1);
    }
    ptx::wgmma_wait_group<1>();  // product 4 has read dO
    ptx::pin_registers(frag_d_out_);
    load_d_out();  // after the last chunk: of no use, but a branch here costs more
    multiply_d_out_aqk();
    if constexpr (Config::kReadsDecayAhead) load_decay();
    ptx::wgmma_wait_group<1>();  // dS is complete, product 1 runs
    ptx::pin_registers(accum_d_state_);
    ptx::mbarrier_arrive(&bar_empty);
    convert_d_state(0);
  }

  // dOᵀ as left operand.
  __device__ __forceinline__ void load_d_out() {
    const uint32_t address =
        ValueTile::chunk_address(stage_address() + offsetof(Stage, d_out), token_row_, token_chunk_);
#pragma unroll
    for (int k16 = 0; k16 < kTokenSteps; ++k16) {
      ptx::ldmatrix_x4_trans(address + k16 * 16 * kPanelRowBytes, frag_d_out_ + 4 * k16);
    }
  }

  // Tokens from `rows` on are another sequence's.
  __device__ __forceinline__ void clear_d_out_from(int rows) {
#pragma unroll
    for (int i = 0; i < 4 * kTokenSteps; ++i) {
      const int token = 16 * (i / 4) + 8 * (i / 2 % 2) + 2 * (threadIdx.x % 4);
      if (token >= rows) frag_d_out_[i] = 0;
      if (token + 1 == rows) frag_d_out_[i] &= 0xffff;
    }
  }

  __device__ __forceinline__ void multiply_d_out_aqk() {
    multiply_triangle(frag_d_out_, descriptor(storage_.aqk));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void multiply_de_t() {
    multiply_triangle(frag_values_, descriptor(storage_.t));
    ptx::wgmma_commit_group();
  }

  // The values become their product with a triangle. Its last rows come first: they have all columns.
  template <int kBlock = kTokenSteps - 1>
  __device__ __forceinline__ void multiply_triangle(const uint32_t* operand, uint64_t triangle) {
    constexpr int kColumns = TriangleTile::kBlock * (kBlock + 1);
    using Columns = float[kColumns / 2];
    ptx::wgmma_fence();
    ptx::Wgmma<kType, kColumns>::template rs<1>(reinterpret_cast<Columns&>(accum_values_), operand + 4 * kBlock,
                                                triangle + TriangleTile::inner_rows_step(kBlock),
                                                kBlock + 1 < kTokenSteps);
    if constexpr (kBlock > 0) multiply_triangle<kBlock - 1>(operand, triangle);
  }

  __device__ __forceinline__ void convert_d_state(int part) {
#pragma unroll
    for (int i = 0; i < kPartFragments; ++i) {
      const float* pair = accum_d_state_ + 2 * (part * kPartFragments + i);
      frag_d_state_[i] = ptx::cvt_pair<kType>(pair[0], pair[1]);
    }
    ptx::pin_registers(frag_d_state_);
  }

  __device__ __forceinline__ void multiply_d_state_kr(int part) {
    const uint64_t kr = KeyTile::inner_columns_descriptor(stage_address() + offsetof(Stage, kr));
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kPartSteps; ++k16) {
      TokenWgmma::template rs<0>(accum_values_, frag_d_state_ + 4 * k16,
                                 kr + KeyTile::inner_columns_step(part * kPartSteps + k16), 1);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void load_decay() {
    const uint32_t address = decay_address_ + ring_.stage * sizeof(storage_.decay[0]);
#pragma unroll
    for (int j = 0; j < Config::kKeys / 8; ++j) decay_[j] = ptx::ld_shared_v2(address + j * 8 * sizeof(float));
  }

  __device__ __forceinline__ void decay_d_state() {
#pragma unroll
    for (int j = 0; j < Config::kKeys / 8; ++j) {
      accum_d_state_[4 * j] *= decay_[j].x;
      accum_d_state_[4 * j + 1] *= decay_[j].y;
      accum_d_state_[4 * j + 2] *= decay_[j].x;
      accum_d_state_[4 * j + 3] *= decay_[j].y;
    }
    ptx::pin_registers(accum_d_state_);
  }

  template <int kHalf>
  __device__ __forceinline__ void multiply_d_out_qd() {
    const uint64_t qd = KeyTile::inner_rows_descriptor(stage_address() + offsetof(Stage, qd));
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = kHalf * kTokenSteps / 2; k16 < (kHalf + 1) * kTokenSteps / 2; ++k16) {
      KeyWgmma::template rs<1>(accum_d_state_, frag_d_out_ + 4 * k16, qd + KeyTile::inner_rows_step(k16), 1);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void convert_values() {
#pragma unroll
    for (int i = 0; i < 4 * kTokenSteps; ++i) {
      frag_values_[i] = ptx::cvt_pair<kType>(accum_values_[2 * i], accum_values_[2 * i + 1]);
    }
    ptx::pin_registers(frag_values_);
  }

  __device__ __forceinline__ void multiply_dv_kd() {
    const uint64_t kd = KeyTile::inner_rows_descriptor(stage_address() + offsetof(Stage, kd));
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kTokenSteps; ++k16) {
      KeyWgmma::template rs<1, -1>(accum_d_state_, frag_values_ + 4 * k16, kd + KeyTile::inner_rows_step(k16), 1);
    }
    ptx::wgmma_commit_group();
  }

  // Where this very warp has read dO.
  __device__ __forceinline__ void store_dv() {
    const uint32_t address =
        ValueTile::chunk_address(stage_address() + offsetof(Stage, d_out), token_row_, token_chunk_);
#pragma unroll
    for (int k16 = 0; k16 < kTokenSteps; ++k16) {
      const uint32_t* frag = frag_values_ + 4 * k16;
      ptx::stmatrix_x4_trans(address + k16 * 16 * kPanelRowBytes, frag[0], frag[1], frag[2], frag[3]);
    }
  }

  // Where Kr was, when every warp's products with it are done.
  __device__ __forceinline__ void store_d_state(int part) {
    ptx::bar_sync(kReverseBarrierKrRead, kWarpgroupThreads);
    const uint32_t address = stage_address() + offsetof(Stage, kr);
#pragma unroll
    for (int k16 = 0; k16 < kPartSteps; ++k16) {
      const uint32_t* frag = frag_d_state_ + 4 * k16;
      const int chunk = 2 * (part * kPartSteps + k16) + state_chunk_;
      ptx::stmatrix_x4(KeyTile::chunk_address(address, state_row_, chunk), frag[0], frag[1], frag[2], frag[3]);
    }
  }

  __device__ __forceinline__ uint32_t stage_address() const { return stages_address_ + ring_.stage * sizeof(Stage); }
  __device__ __forceinline__ uint64_t descriptor(const SmemTile<TriangleTile> (&triangles)[Config::kTriangles]) const {
    return TriangleTile::inner_rows_descriptor(
        ptx::shared_address(&triangles[Config::kTrianglesInStage ? ring_.stage : 0]));
  }

  Storage& storage_;
  const KdaReverseParams& params_;
  const KdaReverseBlock& block_;

  float accum_d_state_[Config::kKeys / 2];
  float accum_values_[kKdaChunkRows / 2];  // dE, then dv
  uint32_t frag_d_out_[4 * kTokenSteps], frag_values_[4 * kTokenSteps];
  uint32_t frag_d_state_[kPartFragments];
  float2 decay_[Config::kKeys / 8];
  RingPosition<Config::kStages> ring_;

  // What a lane reads and writes of tiles: rows of 16 bytes of 8x8 matrices.
  int state_row_, state_chunk_, token_row_, token_chunk_;
  uint32_t stages_address_, decay_address_;
};

}  // namespace warpgrad::cuda::sm90
