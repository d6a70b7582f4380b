#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/attention_bwd/dq/params.h"
#include "backends/cuda/sm90/attention_bwd/params.h"
#include "backends/cuda/sm90/attention_bwd/postprocess/params.h"
#include "backends/cuda/sm90/attention_bwd/preprocess/params.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdLaunch {
  AttentionBwdPreprocessParams preprocess;
  AttentionBwdKernelParams main;
  AttentionBwdPostprocessParams postprocess;  // by keys
  AttentionBwdDqParams dq;                    // by role
  AttentionBwdCombineParams combine;          // where there are several splits
  int row_blocks;                             // of all heads
  int main_blocks, combine_blocks;
};

// Enqueues the kernels of one Config; defined in instance.cuh, instantiated in instances/.
template <class Config>
cudaError_t run_attention_bwd(const AttentionBwdLaunch& launch, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
