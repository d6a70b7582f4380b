#pragma once

#include <cstddef>

#include "backends/cuda/sm90/kda/gradients/storage.cuh"

namespace warpgrad::cuda::sm90 {

// Of KdaScores in scratch: all but the padding behind.
constexpr uint32_t kKdaScoresBytes = offsetof(KdaScores, b_diagonal) + sizeof(KdaScores::b_diagonal);

}  // namespace warpgrad::cuda::sm90
