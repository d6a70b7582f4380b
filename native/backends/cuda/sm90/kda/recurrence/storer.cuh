#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
#include "backends/cuda/sm90/kda/recurrence/work.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// A warp that writes out what the consumers leave in shared memory.
template <class Config>
class KdaRecurrenceStorer {
 public:
  using Storage = KdaRecurrenceStorage<Config>;
  using Stage = typename Storage::Stage;
  using ValueTile = typename Config::ValueTile;

  __device__ __forceinline__ KdaRecurrenceStorer(Storage& storage, const KdaRecurrenceParams& params)
      : storage_(storage), params_(params), lane_idx_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run(const KdaRecurrenceWork& work) {
    work_ = work;
#pragma unroll 1
    for (int i = 0; i < work_.num_chunks; ++i) {
      const int chunk_idx = work_.first_chunk + i;
      const KdaChunk chunk = params_.chunks[chunk_idx];
      if constexpr (Config::kWithImages) store_images(chunk_idx);
      if constexpr (Config::kWithOut) store_out(chunk);
    }
  }
  __device__ __forceinline__ void finish() const {
    if (lane_idx_ == 0) ptx::bulk_wait_group<0>();
  }

 private:
  __device__ __forceinline__ void store_images(int chunk_idx) {
    ptx::mbarrier_wait(&storage_.bar_images_full[images_at_.stage], images_at_.parity);
    if (lane_idx_ == 0) copy_images(chunk_idx);
    if constexpr (!Config::kOutInStage) free_stage(images_at_.stage);
    images_at_.advance();
  }

  __device__ __forceinline__ void copy_images(int chunk_idx) const {
    constexpr int64_t kStateBytes = Config::StateTile::kBytes;  // of a value panel
    const int64_t panel =
        (static_cast<int64_t>(chunk_idx) * params_.value_heads + work_.head) * params_.value_panels + work_.value_panel;
    uint8_t* const e_image = params_.e_images + panel * kKdaPanelBytes;
    uint8_t* const state_image = params_.state_images + panel * kStateBytes;
    const Stage& stage = storage_.stages[images_at_.stage];
    ptx::bulk_store(e_image, storage_.e_tiles(images_at_.stage), Config::kValueParts * ValueTile::kBytes);
    ptx::bulk_store(state_image, &stage.kd, kStateBytes);
    if constexpr (Config::kValueParts == 2) ptx::bulk_store(state_image + kStateBytes, &stage.qd, kStateBytes);
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
    if constexpr (Config::kAwaitsImagesStored) {
      ptx::mbarrier_arrive(&storage_.bar_images_stored[images_at_.stage]);
    }
  }

  __device__ __forceinline__ void store_out(const KdaChunk& chunk) {
    ptx::mbarrier_wait(&storage_.bar_out_full[out_at_.stage], out_at_.parity);
    const uint8_t* const tiles = storage_.out_tiles(out_at_.stage);
#pragma unroll
    for (int part = 0; part < Config::kValueParts; ++part) {
      store_token_panel(params_.out, chunk, work_.head, (work_.value_panel + part) * kPanelColumns,
                        tiles + part * ValueTile::kBytes);
    }
    if (lane_idx_ == 0) {
      ptx::bulk_commit_group();
      ptx::bulk_wait_group_read<0>();
    }
    if constexpr (Config::kOutInStage) {
      free_stage(out_at_.stage);
    } else {
      __syncwarp();
      if (lane_idx_ == 0) ptx::mbarrier_arrive(&storage_.bar_out_stored[0]);
    }
    out_at_.advance();
  }

  // Once nothing leaves from it any more.
  __device__ __forceinline__ void free_stage(uint32_t stage_idx) const {
    __syncwarp();
    if constexpr (Config::kInPlaceOfT) {
      TriangleTile::clear_above(ptx::shared_address(storage_.stages[stage_idx].t.bytes), lane_idx_, kWarpThreads);
      ptx::fence_proxy_async();
      __syncwarp();
    }
    if (lane_idx_ == 0) ptx::mbarrier_arrive(&storage_.bar_empty[stage_idx]);
  }

  Storage& storage_;
  const KdaRecurrenceParams& params_;
  KdaRecurrenceWork work_;
  const int lane_idx_;
  RingPosition<Config::kStages> images_at_;
  RingPosition<Config::kOutSlots> out_at_;
};

}  // namespace warpgrad::cuda::sm90
