#pragma once

#include <cstddef>

#include "backends/cuda/sm90/kda/gradients/storage.cuh"

namespace warpgrad::cuda::sm90 {

// A and B of the pairs, which sum over all values; in shared memory and, but for the padding behind, in scratch.
struct KdaScores {
  SmemTile<KdaScoreTile> smem_a, smem_b;
  float a_diagonal[64];
};
constexpr uint32_t kKdaScoresBytes = offsetof(KdaScores, a_diagonal) + sizeof(KdaScores::a_diagonal);

}  // namespace warpgrad::cuda::sm90
