#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A thread that keeps the stages full of records.
template <class Config>
class KdaRecurrenceProducer {
 public:
  using Storage = KdaRecurrenceStorage<Config>;
  using Stage = typename Storage::Stage;

  __device__ __forceinline__ KdaRecurrenceProducer(Storage& storage, const KdaRecurrenceParams& params,
                                                   const KdaRecurrenceWork& work)
      : storage_(storage), params_(params), work_(work), layout_{Config::kKeyPanels, params.value_panels} {}

  __device__ __forceinline__ void run() {
    const int64_t chunk_bytes = static_cast<int64_t>(params_.value_heads) * layout_.bytes();
    const uint8_t* record = params_.records + work_.first_chunk * chunk_bytes + work_.head * layout_.bytes();
    RingPosition<Config::kStages> at;
    for (int i = 0; i < work_.num_chunks; ++i) {
      ptx::mbarrier_wait(&storage_.bar_empty[at.stage], at.parity ^ 1);
      load(record, at.stage);
      record += chunk_bytes;
      at.advance();
    }
  }

 private:
  // A record starts with W, Kr, Qd and Aqk, in the order of a stage; o alone needs the last two.
  __device__ __forceinline__ void load(const uint8_t* record, uint32_t stage_idx) const {
    Stage& stage = storage_.stages[stage_idx];
    float (&decay)[Config::kKeyPanels * kPanelColumns] = storage_.decay[stage_idx];
    uint64_t* const full = &storage_.bar_full[stage_idx];
    constexpr uint32_t kKeyBytes = (Config::kWithOut ? 3 : 2) * Config::KeyTile::kBytes;
    constexpr uint32_t kSharedBytes = kKeyBytes + (Config::kWithOut ? Config::ScoreTile::kBytes : 0);
    ptx::mbarrier_arrive_expect_tx(full, kSharedBytes + sizeof(stage.u0) + sizeof(decay));
    ptx::bulk_load(&stage.w, record + layout_.w(), kSharedBytes, full);
    // That of a transition is not looked at.
    const int u0_panel = work_.value_panel < layout_.value_panels ? work_.value_panel : 0;
    ptx::bulk_load(stage.u0, record + layout_.u0() + u0_panel * kKdaPanelBytes, sizeof(stage.u0), full);
    ptx::bulk_load(decay, record + layout_.decay(), sizeof(decay), full);
  }

  Storage& storage_;
  const KdaRecurrenceParams& params_;
  const KdaRecurrenceWork& work_;
  const KdaRecordLayout layout_;
};

}  // namespace warpgrad::cuda::sm90
