#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"
#include "backends/cuda/sm90/kda/recurrence/storage.cuh"
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

  __device__ __forceinline__ KdaRecurrenceStorer(Storage& storage, const KdaRecurrenceParams& params,
                                                 const KdaRecurrenceWork& work)
      : storage_(storage), params_(params), work_(work), lane_idx_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (int i = 0; i < work_.num_chunks; ++i) {
      const int chunk_idx = work_.first_chunk + i;
      const KdaChunk chunk = params_.chunks[chunk_idx];
      if constexpr (Config::kWithImages) store_images(chunk_idx);
      if constexpr (Config::kWithOut) store_out(chunk);
    }
    if (lane_idx_ == 0) ptx::bulk_wait_group<0>();
  }

 private:
  __device__ __forceinline__ void store_images(int chunk_idx) {
    ptx::mbarrier_wait(&storage_.bar_images_full[images_at_.stage], images_at_.parity);
    if (lane_idx_ == 0) copy_images(chunk_idx);
    images_at_.advance();
  }

  __device__ __forceinline__ void copy_images(int chunk_idx) const {
    constexpr int64_t kStateBytes = Config::StateTile::kBytes;  // of a value panel
    const int64_t panel =
        (static_cast<int64_t>(chunk_idx) * params_.value_heads + work_.head) * params_.value_panels + work_.value_panel;
    uint8_t* const e_image = params_.e_images + panel * kKdaPanelBytes;
    uint8_t* const state_image = params_.state_images + panel * kStateBytes;
    const Stage& stage = storage_.stages[images_at_.stage];
    if constexpr (Config::kEInStage) {
      ptx::bulk_store(e_image, &stage.t, ValueTile::kBytes);
    } else {
      ptx::bulk_store(e_image, storage_.e_image.tiles, sizeof(storage_.e_image));
    }
    ptx::bulk_store(state_image, &stage.kd, kStateBytes);
    if constexpr (Config::kValueParts == 2) ptx::bulk_store(state_image + kStateBytes, &stage.qd, kStateBytes);
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
    ptx::mbarrier_arrive(&storage_.bar_images_stored[images_at_.stage]);
    if constexpr (!Config::kOutInStage) ptx::mbarrier_arrive(&storage_.bar_empty[images_at_.stage]);
  }

  __device__ __forceinline__ void store_out(const KdaChunk& chunk) {
    ptx::mbarrier_wait(&storage_.bar_out_full[out_at_.stage], out_at_.parity);
    const uint8_t* tiles;
    if constexpr (Config::kOutInStage) {
      tiles = storage_.stages[out_at_.stage].t.bytes;
    } else {
      tiles = storage_.out.tiles[0].bytes;
    }
    if (chunk.rows == kKdaChunkRows) {
      if (lane_idx_ == 0) store_whole(tiles, chunk);
    } else {
      store_rows(tiles, chunk);
      __syncwarp();
    }
    if (lane_idx_ == 0) {
      ptx::mbarrier_arrive(Config::kOutInStage ? &storage_.bar_empty[out_at_.stage]
                                               : &storage_.bar_out_stored[out_at_.stage]);
    }
    out_at_.advance();
  }

  __device__ __forceinline__ void store_whole(const uint8_t* tiles, const KdaChunk& chunk) const {
#pragma unroll
    for (int i = 0; i < Config::kValueParts; ++i) {
      const int column = (work_.value_panel + i) * kPanelColumns;
      ptx::tensor_store(params_.tensor_map_out, {column, chunk.token, work_.head, chunk.batch, 0},
                        tiles + i * ValueTile::kBytes);
    }
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
  }

  // Without touching the rows of the next sequence: lane l takes the 16-byte chunk l % 8 of every fourth row.
  __device__ __forceinline__ void store_rows(const uint8_t* tiles, const KdaChunk& chunk) const {
    const int lane_chunk = lane_idx_ % 8;
    const int64_t row_elems = static_cast<int64_t>(params_.value_heads) * params_.value_dim;
    uint16_t* first_row = params_.out + (chunk.batch * params_.tokens + chunk.token) * row_elems +
                          static_cast<int64_t>(work_.head) * params_.value_dim;
#pragma unroll 1
    for (int i = 0; i < Config::kValueParts; ++i) {
      const int column = (work_.value_panel + i) * kPanelColumns + lane_chunk * 8;
      if (column >= params_.value_dim) continue;
#pragma unroll 1
      for (int row = lane_idx_ / 8; row < chunk.rows; row += kWarpThreads / 8) {
        const uint32_t offset = ValueTile::chunk_address(i * ValueTile::kBytes, row, lane_chunk);
        *reinterpret_cast<uint4*>(first_row + row * row_elems + column) =
            *reinterpret_cast<const uint4*>(tiles + offset);
      }
    }
  }

  Storage& storage_;
  const KdaRecurrenceParams& params_;
  const KdaRecurrenceWork& work_;
  const int lane_idx_;
  RingPosition<Config::kStages> images_at_;
  RingPosition<Config::kOutSlots> out_at_;
};

}  // namespace warpgrad::cuda::sm90
