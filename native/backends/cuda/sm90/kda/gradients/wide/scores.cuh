#pragma once

#include <cstddef>

#include "backends/cuda/sm90/kda/gradients/storage.cuh"

namespace warpgrad::cuda::sm90 {

// What sums over the values give for the pairs and dbeta, in shared memory and, of all but the padding behind, over W
// to Qd of the record, which have been read by then.
struct KdaScores {
  SmemTile<KdaScoreTile> smem_da, smem_d_aqk;
  float d_aqk_diagonal[64];
  float dy_v[64];  // rows of dY v
};
constexpr uint32_t kKdaScoresBytes = offsetof(KdaScores, dy_v) + sizeof(KdaScores::dy_v);
static_assert(kKdaScoresBytes <= KdaRecordLayout{1, 1}.aqk());

}  // namespace warpgrad::cuda::sm90
