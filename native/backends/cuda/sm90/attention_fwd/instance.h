#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/attention_fwd/params.h"

namespace warpgrad::cuda::sm90 {

// Enqueues the kernel of one Config on `blocks` blocks; defined in instance.cuh, instantiated in instances/.
template <class Config>
cudaError_t run_attention_fwd(const AttentionFwdKernelParams& params, int blocks, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
