#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
#include "backends/cuda/sm90/kda/recurrence/work.cuh"
#include "backends/cuda/sm90/kda/state_steps.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warpgroup that carries 64 columns of the state through the chunks of a work. Everything is transposed: Sᵀ
// [64 values, keys] stays in the accumulators, and an accumulator rounded to bfloat16 is the A operand of the next
// product as it lies.
//
//   Rᵀ = vᵀ - Sᵀ Kdᵀ     Eᵀ = Rᵀ Tᵀ     oᵀ = Sᵀ Qdᵀ + Eᵀ Aqkᵀ     Sᵀ = Sᵀ diag(d) + Eᵀ Kr
template <class Config>
class KdaRecurrenceConsumer {
 public:
  using Storage = KdaRecurrenceStorage<Config>;
  using Stage = typename Storage::Stage;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;
  using ValueProduct = ptx::Wgmma<DType::kBFloat16, 64>;                                     // 64 values x 64 tokens
  using StateProduct = ptx::Wgmma<DType::kBFloat16, Config::kOwnKeyPanels * kPanelColumns>;  // 64 values x keys
  using Values = float[Config::kValueRegisters];
  using ValueOperand = uint32_t[Config::kValueRegisters / 2];
  using State = float[Config::kStateRegisters];
  using StateOperand = uint32_t[Config::kStateRegisters / 2];
  // Before T R is waited for; else in the shadow of the products of E, which images take.
  static constexpr bool kPutsOutEarly = Config::kWithImages;
  // Warpgroups that share values take a part of the tokens each of Aqk E and of what is stored of E and o.
  static constexpr int kOwnTokenSteps = Config::kTokenSteps / Config::kKeyParts;

  __device__ __forceinline__ KdaRecurrenceConsumer(Storage& storage, const KdaRecurrenceParams& params,
                                                   int warpgroup_idx)
      : storage_(storage),
        params_(params),
        value_part_(Config::kValueParts == 1 ? 0 : warpgroup_idx / Config::kKeyParts),
        key_part_(warpgroup_idx % Config::kKeyParts) {
    const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads % 4;
    // A warp's 16 columns of a tile [64 tokens, 64 values], whose 8x8 matrices are transposed on the way.
    values_offset_ = ValueTile::chunk_address(0, lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
    decay_offset_ = (key_part_ * Config::kOwnKeyPanels * kPanelColumns + lane % 4 * 2) * sizeof(float);
  }

  __device__ __forceinline__ void run(const KdaRecurrenceWork& work) {
    work_ = work;
    State state;
    if constexpr (Config::kSegment) {
      set_transposed_identity(state, first_value(work_) - params_.value_panels * kPanelColumns);
    } else {
      load_state_in_steps(state, own_keys(params_.initial_state), sequence().initial_state, work_.head,
                          first_value(work_), threadIdx.x);
    }
    if (work_.num_chunks > 0) run_chunks(state);
    const int final_state = sequence().final_state;
    if (final_state >= 0) store(state, params_.final_state, final_state);
  }

 private:
  __device__ __forceinline__ void run_chunks(State& state) {
    Values out = {};
    ValueOperand v;
    ptx::mbarrier_wait(&storage_.bar_full[at_.stage], at_.parity);
    load_values(0, v);
    for (int i = 0; i < work_.num_chunks; ++i) {
      Values accum;
      widen(v, accum);
      // NOTE: here and not at the end of the loop, past which ptxas does not follow products in flight (C7517).
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(state);
      if (Config::kWithChunkStates && params_.chunk_states.data != nullptr) {
        store(state, params_.chunk_states, sequence().first_chunk + i);
      }

      Stage& stage = storage_.stages[at_.stage];
      StateOperand state_operand;
      subtract_kd_state(stage, state, state_operand, accum);
      if (!Config::kOutInStage && i > 0) ptx::mbarrier_arrive(&storage_.bar_empty[at_.before().stage]);
      ptx::bar_warp_sync();  // keeps the scaling out of the issue of the products
      scale_state(state);

      ValueOperand operand, out_operand;
      ptx::wgmma_wait_group<0>();  // Kd S
      ptx::pin_registers(accum);
      round_sum(stage.kd, accum, operand);
      ptx::pin_registers(operand);
      multiply_t_r(stage, operand, accum);
      ptx::bar_warp_sync();
      if constexpr (Config::kWithOut) {
        ptx::pin_registers(out);
        if (i > 0) round_sum(storage_.stages[at_.before().stage].qd, out, out_operand);
        ptx::pin_registers(out_operand);
        ptx::pin_registers(out);
        multiply_qd_state(stage, state_operand, out);
        ptx::bar_warp_sync();
        if (kPutsOutEarly && i > 0) put_out(out_operand);
      }

      ptx::wgmma_wait_group<Config::kWithOut ? 1 : 0>();  // T R
      ptx::pin_registers(accum);
      round_values(accum, operand);
      ptx::pin_registers(operand);
      ptx::pin_registers(state);
      add_products_of_e(stage, operand, state, out);
      if constexpr (Config::kWithOut) {
        if (!kPutsOutEarly && i > 0) put_out(out_operand);
      }
      if constexpr (Config::kWithImages) put_images(stage, state_operand, operand);

      at_.advance();
      if (i + 1 < work_.num_chunks) {
        ptx::mbarrier_wait(&storage_.bar_full[at_.stage], at_.parity);
        load_values(i + 1, v);
      }
    }
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(state);
    if constexpr (Config::kSeveralWorks) ptx::mbarrier_arrive(&storage_.bar_empty[at_.before().stage]);
    if constexpr (Config::kWithOut) {
      ValueOperand out_operand;
      ptx::pin_registers(out);
      round_sum(storage_.stages[at_.before().stage].qd, out, out_operand);
      put_out(out_operand);
    }
  }

  // Looked up anew where states are: two warpgroups have no registers to keep it over the chunks.
  __device__ __forceinline__ KdaRecurrenceWork work() const {
    return Config::kSeveralWorks ? work_ : work_of<Config>(params_, ptx::read_block_idx());
  }
  __device__ __forceinline__ const KdaSequence& sequence() const { return params_.sequences[work().sequence]; }
  __device__ __forceinline__ int first_value(const KdaRecurrenceWork& work) const {
    return (work.value_panel + value_part_) * kPanelColumns;
  }
  __device__ __forceinline__ void store(State& state, const KdaStates& states, int index) const {
    const KdaRecurrenceWork work = this->work();
    store_state_in_steps(state, own_keys(states), index, work.head, first_value(work), threadIdx.x);
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

  // Rᵀ -= Sᵀ Kdᵀ. The first half is issued before the second half of Sᵀ is rounded.
  __device__ __forceinline__ void subtract_kd_state(Stage& stage, const State& state, StateOperand& operand,
                                                    Values& r) {
    const uint64_t kd = KeyTile::inner_columns_descriptor(ptx::shared_address(own_keys(stage.kd)));
    constexpr int kHalf = Config::kKeySteps / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 4 * kHalf * half; j < 4 * kHalf * (half + 1); ++j) {
        operand[j] = ptx::cvt_pair<DType::kBFloat16>(state[2 * j], state[2 * j + 1]);
        asm volatile("" : "+r"(operand[j])::"memory");
      }
      if (half == 0) ptx::pin_registers(r);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = kHalf * half; k < kHalf * (half + 1); ++k) {
        ValueProduct::template rs<0, -1>(r, operand + 4 * k, kd + KeyTile::inner_columns_step(k), 1);
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

  // Eᵀ = Rᵀ Tᵀ
  __device__ __forceinline__ void multiply_t_r(Stage& stage, const ValueOperand& r, Values& e) {
    const uint64_t t = TriangleTile::inner_columns_descriptor(ptx::shared_address(stage.t.bytes));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      ValueProduct::template rs<0>(e, r + 4 * k, t + TriangleTile::inner_columns_step(k), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Sᵀ += Eᵀ Kr, oᵀ += Eᵀ Aqkᵀ
  __device__ __forceinline__ void add_products_of_e(Stage& stage, const ValueOperand& e, State& state, Values& out) {
    const uint64_t kr = KeyTile::inner_rows_descriptor(ptx::shared_address(own_keys(stage.kr)));
    const uint64_t aqk = TriangleTile::inner_columns_descriptor(ptx::shared_address(stage.aqk.bytes));
    const int first_step = key_part_ * kOwnTokenSteps;
    uint32_t own_tokens[4 * kOwnTokenSteps];
#pragma unroll
    for (int j = 0; j < 4 * kOwnTokenSteps; ++j) {
      own_tokens[j] = key_part_ == 0 ? e[j] : e[(j + 4 * kOwnTokenSteps) % (4 * Config::kTokenSteps)];
    }
    ptx::pin_registers(own_tokens);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      StateProduct::template rs<1>(state, e + 4 * k, kr + KeyTile::inner_rows_step(k), 1);
    }
    ptx::wgmma_commit_group();
    if constexpr (Config::kWithOut) {
#pragma unroll
      for (int k = 0; k < kOwnTokenSteps; ++k) {
        ValueProduct::template rs<0>(out, own_tokens + 4 * k, aqk + TriangleTile::inner_columns_step(first_step + k),
                                     1);
      }
      ptx::wgmma_commit_group();
    }
  }

  // In the shadow of the products of E.
  __device__ __forceinline__ void put_images(Stage& stage, const StateOperand& state, const ValueOperand& e) {
    // Qd S: this warp is done with Kd, T and Qd. Kr E too where registers are short.
    if constexpr (Config::kWithOut) ptx::wgmma_wait_group<Config::kKeyParts == 1 ? 2 : 1>();
    ptx::bar_sync(kBarrierConsumers, Config::kConsumerThreads);
    if constexpr (Config::kEInPlaceOfOut) {
      if constexpr (Config::kWithOut) {
        wait_for_out();
      } else {
        wait_for_images(at_.before());
      }
    }
    put_values(storage_.e_tiles(at_.stage), e);
    const uint32_t state_tile = ptx::shared_address(own_keys(value_part_ == 0 ? stage.kd : stage.qd));
    const uint32_t thread = ptx::read_thread_idx() % kWarpgroupThreads;
    const uint32_t row = thread / kWarpThreads * 16 + thread % 16, first_chunk = thread % kWarpThreads / 16;
#pragma unroll
    for (int k = 0; k < Config::kKeySteps; ++k) {
      ptx::stmatrix_x4(KeyTile::chunk_address(state_tile, row, 2 * k + first_chunk), state[4 * k], state[4 * k + 1],
                       state[4 * k + 2], state[4 * k + 3]);
    }
    hand_over(&storage_.bar_images_full[at_.stage]);
  }

  // Puts o of the chunk before where it leaves from.
  __device__ __forceinline__ void put_out(const ValueOperand& out) {
    const RingPosition<Config::kStages> before = at_.before();
    constexpr bool kInPlaceOfE = Config::kWithImages && (Config::kInPlaceOfT || Config::kEInPlaceOfOut);
    if constexpr (kInPlaceOfE) wait_for_images(before);
    if constexpr (Config::kOutInStage) {
      put_values(storage_.out_tiles(before.stage), out);
      hand_over(&storage_.bar_out_full[before.stage]);
    } else {
      if constexpr (!kInPlaceOfE) wait_for_out();
      put_values(storage_.out_tiles(0), out);
      hand_over(&storage_.bar_out_full[0]);
      out_at_.advance();
    }
  }

  // Until the last ones have left.
  __device__ __forceinline__ void wait_for_out() const {
    ptx::mbarrier_wait(&storage_.bar_out_stored[0], out_at_.parity ^ 1);
  }
  __device__ __forceinline__ void wait_for_images(const RingPosition<Config::kStages>& at) const {
    ptx::mbarrier_wait(&storage_.bar_images_stored[at.stage], at.parity);
  }

  // Stores become visible to the copy engine before the arrival.
  __device__ __forceinline__ void hand_over(uint64_t* barrier) const {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(barrier);
  }

  // vᵀ of chunk i as an A operand. It counts once, and not for a transition.
  __device__ __forceinline__ void load_values(int i, ValueOperand& v) const {
    const bool counts = key_part_ == 0 && (!Config::kSegment || work_.value_panel < params_.value_panels);
    if constexpr (Config::kValueSlots > 0) {
      const uint32_t tile =
          ptx::shared_address(storage_.v_tiles(at_.stage)) + value_part_ * ValueTile::kBytes + values_offset_;
#pragma unroll
      for (int k = 0; k < Config::kTokenSteps; ++k) {
        ptx::ldmatrix_x4_trans(tile + k * 16 * kPanelRowBytes, v + 4 * k);
      }
      if constexpr (Config::kValueSlots == 1) ptx::mbarrier_arrive(&storage_.bar_values_empty);
      const bool is_last = i + 1 == work_.num_chunks;
      if (!counts || is_last) clear_values_from(counts ? params_.chunks[work_.first_chunk + i].rows : 0, v);
    } else {
      const KdaChunk& chunk = params_.chunks[work_.first_chunk + i];
      const int thread = ptx::read_thread_idx() % kWarpgroupThreads, lane = thread % kWarpThreads;
      const int first_column = first_value(work_) + thread / kWarpThreads * 16;
      const int rows = chunk.rows - lane / 4, columns = counts ? params_.value_dim - first_column : 0;
      const uint16_t* first = params_.v + chunk.batch * params_.v_batch_stride +
                              (chunk.token + lane / 4) * params_.v_token_stride + work_.head * params_.v_head_stride +
                              first_column + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 2; ++j) {
        const int row = j / 2 * 8, column = j % 2 * 8;
        const bool inside = row < rows && column < columns;
        v[j] = inside ? *reinterpret_cast<const uint32_t*>(first + column) : 0;
        if (j % 2 == 1) first += 8 * params_.v_token_stride;
      }
#pragma unroll
      for (int j = 0; j < Config::kValueRegisters / 2; ++j) v[j] = ptx::movmatrix_trans(v[j]);
    }
  }

  // Rows that a chunk lacks are another sequence's, or anything.
  static __device__ __forceinline__ void clear_values_from(int rows, ValueOperand& v) {
#pragma unroll
    for (int j = 0; j < Config::kValueRegisters / 2; ++j) {
      const int token = 16 * (j / 4) + 8 * (j / 2 % 2) + 2 * (threadIdx.x % 4);
      if (token >= rows) v[j] = 0;
      if (token + 1 == rows) v[j] &= 0xffff;
    }
  }

  // Back from an A operand to [64 tokens, 64 values] in shared memory.
  __device__ __forceinline__ void put_values(const uint8_t* tiles, const ValueOperand& values) const {
    const uint32_t first = ptx::shared_address(tiles) + value_part_ * ValueTile::kBytes + values_offset_;
#pragma unroll
    for (int k = 0; k < Config::kTokenSteps; ++k) {
      if (k / kOwnTokenSteps != key_part_) continue;
      ptx::stmatrix_x4_trans(first + k * 16 * kPanelRowBytes, values[4 * k], values[4 * k + 1], values[4 * k + 2],
                             values[4 * k + 3]);
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
  static __device__ __forceinline__ void round_values(const Values& values, ValueOperand& operand) {
#pragma unroll
    for (int j = 0; j < Config::kValueRegisters / 2; ++j) {
      operand[j] = ptx::cvt_pair<DType::kBFloat16>(values[2 * j], values[2 * j + 1]);
    }
  }
  // The sum over the warpgroups that share the values, rounded. Each leaves its part where its keys were in `tile`,
  // whose products are done.
  __device__ __forceinline__ void round_sum(SmemTile<KeyTile>& tile, const Values& values,
                                            ValueOperand& operand) const {
    if constexpr (Config::kKeyParts == 1) {
      round_values(values, operand);
    } else {
      const int thread = ptx::read_thread_idx() % kWarpgroupThreads;
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
  KdaRecurrenceWork work_;
  const int value_part_, key_part_;
  uint32_t values_offset_, decay_offset_;
  RingPosition<Config::kStages> at_;
  RingPosition<Config::kOutSlots> out_at_;
};

}  // namespace warpgrad::cuda::sm90
