#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/kda/gradients/params.h"

namespace warpgrad::cuda::sm90 {

// Enqueues the kernel of one KdaWideGradientsConfig on `clusters` clusters; defined in instance.cuh, instantiated in
// instances/.
template <class Config>
cudaError_t run_kda_wide_gradients(const KdaGradientsParams& params, int clusters, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
