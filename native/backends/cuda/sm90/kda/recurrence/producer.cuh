#pragma once

#include "backends/cuda/sm90/kda/load_triangle.cuh"
#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
#include "backends/cuda/sm90/kda/recurrence/work.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warp, one thread of which keeps the stages full of records and v. It runs ahead into the next work's chunks.
template <class Config>
class KdaRecurrenceProducer {
 public:
  using Storage = KdaRecurrenceStorage<Config>;
  using Stage = typename Storage::Stage;

  __device__ __forceinline__ KdaRecurrenceProducer(Storage& storage, const KdaRecurrenceParams& params)
      : storage_(storage), params_(params) {}

  __device__ __forceinline__ void run(const KdaRecurrenceWork& work) {
    work_ = work;
    // The consumers read the first one at once.
    if (Config::kSeveralWorks && is_ahead_) {
      prefetch_state<Config::kValueParts * kPanelColumns, Config::kKeyPanels * kPanelColumns>(
          params_.initial_state, params_.sequences[work_.sequence].initial_state, work_.head,
          work_.value_panel * kPanelColumns);
    }
    if (threadIdx.x % kWarpThreads == 0 && work_.num_chunks > 0) load_chunks();
    __syncwarp();
    is_ahead_ = true;
  }

 private:
  static constexpr KdaRecordLayout kLayout{Config::kKeyPanels};

  __device__ __forceinline__ void load_chunks() {
    KdaChunk chunk = params_.chunks[work_.first_chunk];
    const int64_t chunk_bytes = static_cast<int64_t>(params_.value_heads) * kLayout.bytes();
    const uint8_t* record =
        params_.records + work_.first_chunk * chunk_bytes + static_cast<int64_t>(work_.head) * kLayout.bytes();
    for (int i = 0; i < work_.num_chunks; ++i) {
      ptx::mbarrier_wait(&storage_.bar_empty[at_.stage], at_.parity ^ 1);
      load(record, at_.stage);
      if constexpr (Config::kValueSlots == 1) ptx::mbarrier_wait(&storage_.bar_values_empty, i % 2 ^ 1);
      load_values(chunk, at_.stage);
      record += chunk_bytes;
      chunk.token += kKdaChunkRows;
      at_.advance();
    }
  }

  // o alone needs Qd and Aqk.
  __device__ __forceinline__ void load(const uint8_t* record, uint32_t stage_idx) const {
    Stage& stage = storage_.stages[stage_idx];
    float (&decay)[Config::kKeyPanels * kPanelColumns] = storage_.decay[stage_idx];
    uint64_t* const full = &storage_.bar_full[stage_idx];
    constexpr uint32_t kKeyBytes = Config::KeyTile::kBytes, kStateBytes = 2 * kKeyBytes + kKdaTriangleBytes;
    constexpr uint32_t kOutBytes = Config::kWithOut ? kKeyBytes + kKdaTriangleBytes : 0;
    constexpr uint32_t kValueBytes = Config::kValueSlots > 0 ? Config::kValueParts * Config::ValueTile::kBytes : 0;
    ptx::mbarrier_arrive_expect_tx(full, kStateBytes + kOutBytes + kValueBytes + sizeof(decay));
    ptx::bulk_load(&stage.kd, record + kLayout.kd(), 2 * kKeyBytes, full);  // and Kr
    load_triangle(stage.t, record + kLayout.t(), full);
    if constexpr (Config::kWithOut) {
      ptx::bulk_load(&stage.qd, record + kLayout.qd(), kKeyBytes, full);
      load_triangle(stage.aqk, record + kLayout.aqk(), full);
    }
    ptx::bulk_load(decay, record + kLayout.decay(), sizeof(decay), full);
  }

  // Those of a transition are not looked at.
  __device__ __forceinline__ void load_values(const KdaChunk& chunk, uint32_t stage_idx) const {
    const int first_panel = work_.value_panel < params_.value_panels ? work_.value_panel : 0;
#pragma unroll
    for (int part = 0; part < Config::kValueParts; ++part) {
      const int32_t coords[] = {(first_panel + part) * kPanelColumns, chunk.token, work_.head, chunk.batch, 0};
      if constexpr (Config::kValueSlots > 0) {
        ptx::tensor_load(storage_.v_tiles(stage_idx) + part * Config::ValueTile::kBytes, params_.tensor_map_v, coords,
                         &storage_.bar_full[stage_idx]);
      } else {
        ptx::tensor_prefetch(params_.tensor_map_v, coords);
      }
    }
  }

  Storage& storage_;
  const KdaRecurrenceParams& params_;
  KdaRecurrenceWork work_;
  bool is_ahead_ = false;
  RingPosition<Config::kStages> at_;
};

}  // namespace warpgrad::cuda::sm90
