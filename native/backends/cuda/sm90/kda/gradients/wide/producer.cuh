#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/producer.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/scores.cuh"

namespace warpgrad::cuda::sm90 {

// One thread: the loads of every tile. The first part of the values comes while the tile before is at its pairs.
template <class Config>
class KdaWideGradientsProducer : KdaGradientsProducer<Config> {
 public:
  using KdaGradientsProducer<Config>::KdaGradientsProducer;

  __device__ __forceinline__ void run() {
    for (; this->walk_.is_inside(this->params_); this->walk_.advance()) {
      const KdaGradientsParams& params = this->params_;
      const auto [chunk_idx, head] = this->walk_.place(params);
      const KdaChunk chunk = params.chunks[chunk_idx];
      const int qk_head = head / params.group;
      this->load_token_scalars();
      this->load_values(0, head, chunk);
      // Ahead of what is left of the values: the rows of a ragged chunk are masked first.
      this->load_qk(qk_head, chunk);
      this->load_g(head, chunk);
      load_scores();
      for (int part = 1; part < params.value_parts; ++part) this->load_values(part, head, chunk);
    }
  }

 private:
  __device__ __forceinline__ void load_scores() {
    const KdaGradientsParams& params = this->params_;
    KdaGradientsStorage<Config>& storage = this->storage_;
    ptx::mbarrier_sleep(&storage.bar_scores_empty, this->walk_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(&storage.bar_scores_full, kKdaScoresBytes);
    ptx::bulk_load(static_cast<KdaScores*>(&storage),
                   params.scores + static_cast<size_t>(this->walk_.tile) * kKdaScoresBytes, kKdaScoresBytes,
                   &storage.bar_scores_full);
  }
};

}  // namespace warpgrad::cuda::sm90
