#pragma once

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
  constexpr KdaRecordLayout kRecord = {Config::kKeyPanels, 0};
  static_assert(kRecord.aqk() - kRecord.qd() == offsetof(Stage, aqk) - offsetof(Stage, qd), "loaded at once");
  const int decay_offset = KdaRecordLayout{Config::kKeyPanels, params.value_panels}.decay();
  const int num_chunks = block.sequence.num_chunks;
  if (num_chunks == 0) return;
  const KdaChunk first = params.chunks[block.sequence.first_chunk];
  RingPosition<Config::kStages> ring;
  for (int step = 0; step < num_chunks; ++step, ring.advance()) {
    Stage& stage = storage.stages[ring.stage];
    uint64_t* full = &storage.bar_full[ring.stage];
    const uint8_t* record = params.records + block.image(params, step) * params.record_bytes;
    const int token = first.token + (num_chunks - 1 - step) * kKdaChunkRows;
    ptx::mbarrier_wait(&storage.bar_empty[ring.stage], ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, sizeof(stage) + kDecayBytes);
    ptx::bulk_load(&stage.w, record + kRecord.w(), sizeof(stage.w), full);
    ptx::bulk_load(&stage.qd, record + kRecord.qd(), sizeof(stage.qd) + sizeof(stage.aqk), full);
    ptx::bulk_load(storage.decay[ring.stage], record + decay_offset, kDecayBytes, full);
    // dS and dU have to leave first.
    ptx::mbarrier_wait(&storage.bar_sent[ring.stage], ring.parity ^ 1);
    ptx::bulk_load(&stage.kr, record + kRecord.kr(), sizeof(stage.kr), full);
    ptx::tensor_load(&stage.d_out, params.tensor_map_d_out, {block.first_value(), token, block.head, first.batch},
                     full);
  }
}

// Another one sends off dU and dS.
template <class Config>
__device__ __forceinline__ void run_kda_reverse_storer(KdaReverseStorage<Config>& storage,
                                                       const KdaReverseParams& params, const KdaReverseBlock& block) {
  using Stage = KdaReverseStage<Config>;
  RingPosition<Config::kStages> ring;
  for (int step = 0; step < block.sequence.num_chunks; ++step, ring.advance()) {
    ptx::mbarrier_wait(&storage.bar_out[ring.stage], ring.parity);
    // Orders what the consumers wrote before they arrived, too.
    ptx::fence_proxy_async();
    Stage& stage = storage.stages[ring.stage];
    const size_t panel = block.image(params, step) * params.value_panels + block.value_panel;
    ptx::bulk_store(params.du_images + panel * sizeof(stage.d_out), stage.d_out.bytes, sizeof(stage.d_out));
    ptx::bulk_store(params.d_state_images + panel * sizeof(stage.kr), stage.kr.bytes, sizeof(stage.kr));
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
    ptx::mbarrier_arrive(&storage.bar_sent[ring.stage]);
  }
  ptx::bulk_wait_group<0>();
}

}  // namespace warpgrad::cuda::sm90
