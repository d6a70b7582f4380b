#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/kda/prepare/config.cuh"
#include "backends/cuda/sm90/kda/prepare/params.h"

namespace warpgrad::cuda::sm90 {

// Defined in instance.cuh, instantiated in instances/.
template <class Config>
cudaError_t run_kda_prepare(const KdaPrepareParams& params, int blocks, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
