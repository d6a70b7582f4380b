#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/kda/gradients/params.h"

namespace warpgrad::cuda::sm90 {

// A and B, before the gradients of wide heads: KdaScores of every tile.
cudaError_t run_kda_scores(const KdaGradientsParams& params, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
