#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/kda/gradients/params.h"

namespace warpgrad::cuda::sm90 {

// What sums over all values, before the gradients of wide heads: dv to its place, dY over dU, dA, dAqk and the rows of
// dY v over the record's matrices (KdaScores).
cudaError_t run_kda_scores(const KdaGradientsParams& params, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
