#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/producer.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/storage.cuh"

namespace warpgrad::cuda::sm90 {

// One thread: the loads of every tile. The first part of the values comes while the tile before is at its pairs.
template <class Config>
class KdaWideGradientsProducer : KdaGradientsProducer<Config> {
 public:
  using KdaGradientsProducer<Config>::KdaGradientsProducer;

  __device__ __forceinline__ void run() {
    for (; this->walk_.is_inside(this->params_); this->walk_.advance()) {
      const KdaGradientsParams& params = this->params_;
      KdaGradientsStorage<Config>& storage = this->storage_;
      const auto [chunk_idx, head] = this->walk_.place(params);
      const KdaChunk chunk = params.chunks[chunk_idx];
      const int qk_head = head / params.group;
      this->load_token_scalars();
      load_values(0, head, chunk);
      // Ahead of what is left of the values: the rows of a ragged chunk are masked first.
      this->load_tokens(kKdaK, storage.smem_k.bytes, params.tensor_map_k, qk_head, chunk);
      this->load_tokens(kKdaQ, storage.smem_q.bytes, params.tensor_map_q, qk_head, chunk);
      this->load_g(head, chunk);
      load_scores();
      for (int part = 1; part < params.value_parts; ++part) load_values(part, head, chunk);
    }
  }

 private:
  // S and dS are [value panel][key panel] each, of which two and two are wanted.
  __device__ __forceinline__ void load_values(int part, int head, const KdaChunk& chunk) {
    const KdaGradientsParams& params = this->params_;
    KdaGradientsStorage<Config>& storage = this->storage_;
    const KdaRecordLayout& record = params.record;
    const int panels = min(2, params.value_panels), key_panels = min(2, record.key_panels);
    const uint32_t state_bytes = key_panels * kKdaPanelBytes;
    uint64_t* const full = &storage.bar_values_full;
    ptx::mbarrier_sleep(&storage.bar_values_empty, (values_count_++ & 1) ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, panels * (2 * state_bytes + 3 * kKdaPanelBytes));
    const int64_t value_panel = static_cast<int64_t>(this->walk_.tile) * params.value_panels + 2 * part;
    for (int i = 0; i < panels; ++i) {
      const int64_t state = ((value_panel + i) * record.key_panels + 2 * blockIdx.x) * kKdaPanelBytes;
      ptx::bulk_load(storage.smem_state[i].bytes, params.states + state, state_bytes, full);
      ptx::bulk_load(storage.smem_d_state[i].bytes, params.d_states + state, state_bytes, full);
      const int column = (2 * part + i) * kPanelColumns, byte = i * kKdaPanelBytes;
      ptx::tensor_load(storage.smem_dv.bytes + byte, params.tensor_map_dv, {column, chunk.token, head, chunk.batch},
                       full);
      ptx::tensor_load(storage.smem_d_out.bytes + byte, params.tensor_map_d_out,
                       {column, chunk.token, head, chunk.batch}, full);
    }
    ptx::bulk_load(storage.smem_e.bytes, params.e + value_panel * kKdaPanelBytes, panels * kKdaPanelBytes, full);
  }

  __device__ __forceinline__ void load_scores() {
    const KdaGradientsParams& params = this->params_;
    KdaGradientsStorage<Config>& storage = this->storage_;
    ptx::mbarrier_sleep(&storage.bar_scores_empty, this->walk_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(&storage.bar_scores_full, kKdaScoresBytes);
    ptx::bulk_load(static_cast<KdaScores*>(&storage),
                   params.scores + static_cast<size_t>(this->walk_.tile) * kKdaScoresBytes, kKdaScoresBytes,
                   &storage.bar_scores_full);
  }

  uint32_t values_count_ = 0;
};

}  // namespace warpgrad::cuda::sm90
