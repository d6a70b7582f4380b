#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
#include "backends/cuda/sm90/kda/state.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warpgroup that carries 64 columns of the state through the chunks of a sequence. Everything is transposed: Sᵀ
// [64 values, keys] stays in the accumulators, and an accumulator rounded to bfloat16 is the A operand of the next
// product as it lies.
//
//   Uᵀ = U0ᵀ - Sᵀ Wᵀ        oᵀ = Sᵀ Qdᵀ + Uᵀ Aqkᵀ        Sᵀ = Sᵀ diag(d) + Uᵀ Kr
template <class Config>
class KdaRecurrenceConsumer {
 public:
  using Storage = KdaRecurrenceStorage<Config>;
  using Stage = typename Storage::Stage;
  using KeyTile = typename Config::KeyTile;
  using ScoreTile = typename Config::ScoreTile;
  using ValueTile = typename Config::ValueTile;
  using ValueProduct = ptx::Wgmma<DType::kBFloat16, 64>;                                     // 64 values x 64 tokens
  using StateProduct = ptx::Wgmma<DType::kBFloat16, Config::kOwnKeyPanels * kPanelColumns>;  // 64 values x keys
  using Values = float[Config::kValueRegisters];
  using ValueOperand = uint32_t[Config::kValueRegisters / 2];
  using State = float[Config::kStateRegisters];
  using StateOperand = uint32_t[Config::kStateRegisters / 2];
  // Warpgroups that share values take a part of the tokens each of Aqk U and of what is stored of U and o.
  static constexpr int kOwnTokenSteps = Config::kTokenSteps / Config::kKeyParts;

  __device__ __forceinline__ KdaRecurrenceConsumer(Storage& storage, const KdaRecurrenceParams& params,
                                                   const KdaRecurrenceWork& work, int warpgroup_idx)
      : storage_(storage),
        params_(params),
        work_(work),
        value_part_(Config::kValueParts == 1 ? 0 : warpgroup_idx / Config::kKeyParts),
        key_part_(warpgroup_idx % Config::kKeyParts) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads % 4;
    // A warp's 16 columns of a tile [64 tokens, 64 values], whose 8x8 matrices are transposed on the way.
    values_offset_ = ValueTile::chunk_address(0, lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
    decay_offset_ = (key_part_ * Config::kOwnKeyPanels * kPanelColumns + lane % 4 * 2) * sizeof(float);
  }

  __device__ __forceinline__ void run() {
    State state;
    if constexpr (Config::kSegment) {
      set_transposed_identity(state, first_value() - params_.value_panels * kPanelColumns);
    } else {
      load_transposed_state(state, own_keys(params_.initial_state), sequence().initial_state, work_.head,
                            first_value());
    }
    if (work_.num_chunks > 0) run_chunks(state);
    const int final_state = sequence().final_state;
    if (final_state >= 0) store(state, params_.final_state, final_state);
  }

 private:
  __device__ __forceinline__ void run_chunks(State& state) {
    Values out = {};
    ValueOperand u0;
    ptx::mbarrier_wait(&storage_.bar_full[0], 0);
    load_u0(at_.stage, u0);
    for (int i = 0; i < work_.num_chunks; ++i) {
      Values u;
      widen(u0, u);
      // NOTE: here and not at the end of the loop, past which ptxas does not follow products in flight (C7517).
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(state);
      if (Config::kWithChunkStates && params_.chunk_states.data != nullptr) {
        store(state, params_.chunk_states, sequence().first_chunk + i);
      }

      Stage& stage = storage_.stages[at_.stage];
      StateOperand state_operand;
      subtract_w_state(stage, state, state_operand, u);
      ptx::bar_warp_sync();  // keeps the scaling out of the issue of the products
      scale_state(state);

      ValueOperand out_operand;
      if constexpr (Config::kWithOut) {
        ptx::pin_registers(out);
        if (i > 0) round_sum(storage_.stages[at_.before().stage].qd, out, out_operand);
        ptx::pin_registers(out_operand);
        ptx::pin_registers(out);
        ptx::pin_registers(state);
        multiply_qd_state(stage, state_operand, out);
        ptx::bar_warp_sync();
      }
      if (i > 0) finish_chunk(out_operand);

      ptx::wgmma_wait_group<Config::kWithOut ? 1 : 0>();  // W S
      ptx::pin_registers(u);
      ValueOperand u_operand;
      round_sum(stage.w, u, u_operand);
      ptx::pin_registers(u_operand);
      ptx::pin_registers(state);
      add_products_of_u(stage, u_operand, state, out);
      if constexpr (Config::kWithImages) put_images(stage, state_operand, u_operand);

      at_.advance();
      if (i + 1 < work_.num_chunks) {
        ptx::mbarrier_wait(&storage_.bar_full[at_.stage], at_.parity);
        load_u0(at_.stage, u0);
      }
    }
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(state);
    ValueOperand out_operand;
    if constexpr (Config::kWithOut) {
      ptx::pin_registers(out);
      round_sum(storage_.stages[at_.before().stage].qd, out, out_operand);
    }
    finish_chunk(out_operand);
  }

  __device__ __forceinline__ const KdaSequence& sequence() const { return params_.sequences[work_.sequence]; }
  __device__ __forceinline__ int first_value() const { return (work_.value_panel + value_part_) * kPanelColumns; }
  __device__ __forceinline__ void store(State& state, const KdaStates& states, int index) const {
    store_transposed_state(state, own_keys(states), index, work_.head, first_value());
  }

  // The keys of this warpgroup: in states, in a tile [64, keys].
  __device__ __forceinline__ KdaStates own_keys(KdaStates states) const {
    const int first_key = key_part_ * Config::kOwnKeyPanels * kPanelColumns;
    states.data += first_key * states.key_stride;
    states.key_dim -= first_key;
    return states;
  }
  __device__ __forceinline__ uint8_t* own_keys(SmemTile<KeyTile>& tile) const {
    return tile.bytes + key_part_ * Config::kOwnKeyPanels * KeyTile::kPanelBytes;
  }

  // Uᵀ -= Sᵀ Wᵀ. The first half is issued before the second half of Sᵀ is rounded.
  __device__ __forceinline__ void subtract_w_state(Stage& stage, const State& state, StateOperand& operand, Values& u) {
    const uint64_t w = KeyTile::inner_columns_descriptor(ptx::shared_address(own_keys(stage.w)));
    constexpr int kHalf = Config::kKeySteps / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 4 * kHalf * half; j < 4 * kHalf * (half + 1); ++j) {
        operand[j] = ptx::cvt_pair<DType::kBFloat16>(state[2 * j], state[2 * j + 1]);
        asm volatile("" : "+r"(operand[j])::"memory");
      }
      if (half == 0) ptx::pin_registers(u);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = kHalf * half; k < kHalf * (half + 1); ++k) {
        ValueProduct::template rs<0, -1>(u, operand + 4 * k, w + KeyTile::inner_columns_step(k), 1);
      }
    }
    ptx::wgmma_commit_group();
  }

  // Sᵀ diag(d)
  __device__ __forceinline__ void scale_state(State& state) const {
    const uint32_t decay = ptx::shared_address(storage_.decay[at_.stage]) + decay_offset_;
#pragma unroll
    for (int j = 0; j < Config::kStateRegisters / 4; ++j) {
      const float2 d = ptx::ld_shared_v2(decay + j * 8 * sizeof(float));
      state[4 * j] *= d.x;
      state[4 * j + 1] *= d.y;
      state[4 * j + 2] *= d.x;
      state[4 * j + 3] *= d.y;
    }
    ptx::pin_registers(state);
  }

  // oᵀ = Sᵀ Qdᵀ
  __device__ __forceinline__ void multiply_qd_state(Stage& stage, const StateOperand& operand, Values& out) {
    const uint64_t qd = KeyTile::inner_columns_descriptor(ptx::shared_address(own_keys(stage.qd)));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kKeySteps; ++k) {
      ValueProduct::template rs<0>(out, operand + 4 * k, qd + KeyTile::inner_columns_step(k), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Sᵀ += Uᵀ Kr, oᵀ += Uᵀ Aqkᵀ
  __device__ __forceinline__ void add_products_of_u(Stage& stage, const ValueOperand& u, State& state, Values& out) {
    const uint64_t kr = KeyTile::inner_rows_descriptor(ptx::shared_address(own_keys(stage.kr)));
    const uint64_t aqk = ScoreTile::inner_columns_descriptor(ptx::shared_address(stage.aqk.bytes));
    const int first_step = key_part_ * kOwnTokenSteps;
    uint32_t own_tokens[4 * kOwnTokenSteps];
#pragma unroll
    for (int j = 0; j < 4 * kOwnTokenSteps; ++j) {
      own_tokens[j] = key_part_ == 0 ? u[j] : u[(j + 4 * kOwnTokenSteps) % (4 * Config::kTokenSteps)];
    }
    ptx::pin_registers(own_tokens);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      StateProduct::template rs<1>(state, u + 4 * k, kr + KeyTile::inner_rows_step(k), 1);
    }
    ptx::wgmma_commit_group();
    if constexpr (Config::kWithOut) {
#pragma unroll
      for (int k = 0; k < kOwnTokenSteps; ++k) {
        ValueProduct::template rs<0>(out, own_tokens + 4 * k, aqk + ScoreTile::inner_columns_step(first_step + k), 1);
      }
      ptx::wgmma_commit_group();
    }
  }

  // In the shadow of the products of U.
  __device__ __forceinline__ void put_images(Stage& stage, const StateOperand& state, const ValueOperand& u) {
    uint32_t u_tile, state_tile;
    if constexpr (Config::kImagesInStage) {
      // Qd S: this warp is done with W and Qd. Kr U too where registers are short.
      if constexpr (Config::kWithOut) ptx::wgmma_wait_group<Config::kKeyParts == 1 ? 2 : 1>();
      ptx::bar_sync(kBarrierConsumers, Config::kConsumerThreads);
      u_tile = ptx::shared_address(stage.u0[value_part_].bytes);
      state_tile = ptx::shared_address(own_keys(value_part_ == 0 ? stage.w : stage.qd));
    } else {
      ptx::mbarrier_wait(&storage_.bar_images_stored[0], images_at_.parity ^ 1);  // those of the chunk before
      u_tile = ptx::shared_address(&storage_.u_image);
      state_tile = ptx::shared_address(&storage_.state_image);
    }
    put_values(u_tile, u);
    const uint32_t thread = ptx::read_thread_idx() % kWarpgroupThreads;
    const uint32_t row = thread / kWarpThreads * 16 + thread % 16, first_chunk = thread % kWarpThreads / 16;
#pragma unroll
    for (int k = 0; k < Config::kKeySteps; ++k) {
      ptx::stmatrix_x4(KeyTile::chunk_address(state_tile, row, 2 * k + first_chunk), state[4 * k], state[4 * k + 1],
                       state[4 * k + 2], state[4 * k + 3]);
    }
    // In a stage its position serves; another would take registers.
    hand_over(&storage_.bar_images_full[Config::kImagesInStage ? at_.stage : images_at_.stage]);
    if constexpr (!Config::kImagesInStage) images_at_.advance();
  }

  // Gives back the stage of the chunk before, whose products are done, and puts its o where it leaves from.
  __device__ __forceinline__ void finish_chunk(const ValueOperand& out) {
    const RingPosition<Config::kStages> before = at_.before();
    if constexpr (Config::kOutInStage) {
      if constexpr (Config::kWithImages) {
        ptx::mbarrier_wait(&storage_.bar_images_stored[before.stage], before.parity);
      }
      put_values(ptx::shared_address(storage_.stages[before.stage].u0[value_part_].bytes), out);
      hand_over(&storage_.bar_out_full[before.stage]);
    } else {
      ptx::mbarrier_arrive(&storage_.bar_empty[before.stage]);
      if constexpr (Config::kWithOut) {
        ptx::mbarrier_wait(&storage_.bar_out_stored[out_at_.stage], out_at_.parity ^ 1);
        put_values(ptx::shared_address(storage_.out.tiles[out_at_.stage].bytes), out);
        hand_over(&storage_.bar_out_full[out_at_.stage]);
        out_at_.advance();
      }
    }
  }

  // Stores become visible to the copy engine before the arrival.
  __device__ __forceinline__ void hand_over(uint64_t* barrier) const {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(barrier);
  }

  // Between [64 tokens, 64 values] in shared memory and its transpose as an A operand.
  __device__ __forceinline__ void load_u0(uint32_t stage, ValueOperand& u0) const {
    const uint32_t tile = ptx::shared_address(storage_.stages[stage].u0[value_part_].bytes) + values_offset_;
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      ptx::ldmatrix_x4_trans(tile + k * 16 * kPanelRowBytes, u0 + 4 * k);
    }
    if constexpr (Config::kKeyParts > 1 || Config::kSegment) {
      // Counts once, and not for a transition.
      const bool counts = key_part_ == 0 && (!Config::kSegment || work_.value_panel < params_.value_panels);
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 2; ++j) u0[j] = counts ? u0[j] : 0;
    }
  }
  __device__ __forceinline__ void put_values(uint32_t tile, const ValueOperand& values) const {
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      if (k / kOwnTokenSteps != key_part_) continue;
      ptx::stmatrix_x4_trans(tile + values_offset_ + k * 16 * kPanelRowBytes, values[4 * k], values[4 * k + 1],
                             values[4 * k + 2], values[4 * k + 3]);
    }
  }

  static __device__ __forceinline__ void widen(const ValueOperand& operand, Values& values) {
#pragma unroll
    for (int j = 0; j < Config::kValueRegisters / 2; ++j) {
      const float2 pair = ptx::widen_pair<DType::kBFloat16>(operand[j]);
      values[2 * j] = pair.x;
      values[2 * j + 1] = pair.y;
    }
  }
  // The sum over the warpgroups that share the values, rounded. Each leaves its part where its keys were in `tile`,
  // whose products are done.
  __device__ __forceinline__ void round_sum(SmemTile<KeyTile>& tile, const Values& values,
                                            ValueOperand& operand) const {
    if constexpr (Config::kKeyParts == 1) {
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 2; ++j) {
        operand[j] = ptx::cvt_pair<DType::kBFloat16>(values[2 * j], values[2 * j + 1]);
      }
    } else {
      const int thread = threadIdx.x % kWarpgroupThreads;
      constexpr int kPartBytes = KeyTile::kBytes / Config::kKeyParts;
      float4* own = reinterpret_cast<float4*>(tile.bytes + key_part_ * kPartBytes) + thread;
      const float4* other = reinterpret_cast<const float4*>(tile.bytes + (1 - key_part_) * kPartBytes) + thread;
      ptx::bar_sync(kBarrierConsumers, Config::kConsumerThreads);
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 4; ++j) {
        const float* value = values + 4 * j;
        own[j * kWarpgroupThreads] = make_float4(value[0], value[1], value[2], value[3]);
      }
      ptx::bar_sync(kBarrierConsumers, Config::kConsumerThreads);
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 4; ++j) {
        const float* value = values + 4 * j;
        const float4 part = other[j * kWarpgroupThreads];
        operand[2 * j] = ptx::cvt_pair<DType::kBFloat16>(value[0] + part.x, value[1] + part.y);
        operand[2 * j + 1] = ptx::cvt_pair<DType::kBFloat16>(value[2] + part.z, value[3] + part.w);
      }
    }
  }

  Storage& storage_;
  const KdaRecurrenceParams& params_;
  const KdaRecurrenceWork& work_;
  const int value_part_, key_part_;
  uint32_t values_offset_, decay_offset_;
  RingPosition<Config::kStages> at_;
  RingPosition<Config::kOutSlots> out_at_;
  RingPosition<Config::kImageSlots> images_at_;
};

}  // namespace warpgrad::cuda::sm90
