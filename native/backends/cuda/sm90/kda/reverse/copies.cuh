#pragma once

#include "backends/cuda/sm90/kda/load_triangle.cuh"
#include "backends/cuda/sm90/kda/reverse/block.cuh"
#include "backends/cuda/sm90/kda/reverse/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/tile/ring.cuh"

namespace warpgrad::cuda::sm90 {

// One thread loads the chunks.
template <class Config>
__device__ __forceinline__ void run_kda_reverse_producer(KdaReverseStorage<Config>& storage,
                                                         const KdaReverseParams& params, const KdaReverseBlock& block) {
  using Stage = KdaReverseStage<Config>;
  constexpr uint32_t kDecayBytes = sizeof(storage.decay[0]);
  constexpr KdaRecordLayout kRecord = {Config::kKeyPanels};
  constexpr uint32_t kStageBytes =
      sizeof(Stage) + kDecayBytes + (Config::kTrianglesInStage ? 2 * kKdaTriangleBytes : 0);
  const int num_chunks = block.sequence.num_chunks;
  if (num_chunks == 0) return;
  const KdaChunk first = params.chunks[block.sequence.first_chunk];
  RingPosition<Config::kStages> ring;
  RingPosition<1> triangle;
  for (int step = 0; step < num_chunks; ++step, ring.advance(), triangle.advance()) {
    Stage& stage = storage.stages[ring.stage];
    uint64_t* full = &storage.bar_full[ring.stage];
    const uint8_t* record = params.records + block.image(params, step) * kRecord.bytes();
    const int token = first.token + (num_chunks - 1 - step) * kKdaChunkRows;
    const auto load_apart = [&](SmemTile<TriangleTile>& tile, int offset, uint64_t* bar_full, uint64_t* bar_empty) {
      ptx::mbarrier_wait(bar_empty, triangle.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(bar_full, kKdaTriangleBytes);
      load_triangle(tile, record + offset, bar_full);
    };
    ptx::mbarrier_wait(&storage.bar_empty[ring.stage], ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
    ptx::bulk_load(&stage.kd, record + kRecord.kd(), sizeof(stage.kd), full);
    ptx::bulk_load(&stage.qd, record + kRecord.qd(), sizeof(stage.qd), full);
    ptx::bulk_load(storage.decay[ring.stage], record + kRecord.decay(), kDecayBytes, full);
    if constexpr (Config::kTrianglesInStage) {
      load_triangle(storage.t[ring.stage], record + kRecord.t(), full);
      load_triangle(storage.aqk[ring.stage], record + kRecord.aqk(), full);
    }
    // dS and dv have to leave first.
    ptx::mbarrier_wait(&storage.bar_sent[ring.stage], ring.parity ^ 1);
    ptx::bulk_load(&stage.kr, record + kRecord.kr(), sizeof(stage.kr), full);
    ptx::tensor_load(&stage.d_out, params.tensor_map_d_out, {block.first_value(), token, block.head, first.batch, 0},
                     full);
    if constexpr (!Config::kTrianglesInStage) {
      load_apart(storage.aqk[0], kRecord.aqk(), &storage.bar_aqk_full, &storage.bar_aqk_empty);
      load_apart(storage.t[0], kRecord.t(), &storage.bar_t_full, &storage.bar_t_empty);
    }
  }
}

// A warp sends off dv and dS.
template <class Config>
__device__ __forceinline__ void run_kda_reverse_storer(KdaReverseStorage<Config>& storage,
                                                       const KdaReverseParams& params, const KdaReverseBlock& block) {
  using Stage = KdaReverseStage<Config>;
  const bool first_lane = threadIdx.x % kWarpThreads == 0;
  RingPosition<Config::kStages> ring;
#pragma unroll 1
  for (int step = 0; step < block.sequence.num_chunks; ++step, ring.advance()) {
    const KdaChunk chunk = params.chunks[block.chunk(step)];
    Stage& stage = storage.stages[ring.stage];
    ptx::mbarrier_wait(&storage.bar_out[ring.stage], ring.parity);
    // Orders what the consumers wrote before they arrived, too.
    ptx::fence_proxy_async();
    store_token_panel(params.dv, chunk, block.head, block.first_value(), stage.d_out.bytes);
    __syncwarp();
    if (first_lane) {
      const size_t panel = block.image(params, step) * params.value_panels + block.value_panel;
      ptx::bulk_store(params.d_state_images + panel * sizeof(stage.kr), stage.kr.bytes, sizeof(stage.kr));
      ptx::bulk_commit_group();
      ptx::bulk_wait_group_read<0>();
      ptx::mbarrier_arrive(&storage.bar_sent[ring.stage]);
    }
  }
  if (first_lane) ptx::bulk_wait_group<0>();
}

}  // namespace warpgrad::cuda::sm90
