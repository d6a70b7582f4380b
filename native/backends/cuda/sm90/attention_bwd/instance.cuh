#pragma once

#include "backends/cuda/sm90/attention_bwd/dq/kernel.cuh"
#include "backends/cuda/sm90/attention_bwd/instance.h"
#include "backends/cuda/sm90/attention_bwd/main/kernel.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/combine.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/postprocess.cuh"
#include "backends/cuda/sm90/attention_bwd/preprocess/preprocess.cuh"
#include "backends/cuda/sm90/shared_memory.h"

namespace warpgrad::cuda::sm90 {

// Enqueues a kernel that may be started while the one before it ends; it waits itself for what that one wrote.
template <auto kKernel, class Params>
cudaError_t launch_dependent(int blocks, int threads, int smem_bytes, cudaStream_t stream, const Params& params) {
  const cudaError_t status = allow_shared_memory<kKernel>(smem_bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kKernel, params);
}

template <class Config>
cudaError_t run_attention_bwd(const AttentionBwdLaunch& launch, cudaStream_t stream) {
  constexpr int kRowThreads = Config::kVDim <= 64 ? 8 : Config::kVDim <= 128 ? 16 : 32;  // 8 columns each
  attention_bwd_preprocess_kernel<Config::kType, kRowThreads>
      <<<launch.row_blocks, kPreprocessThreads, 0, stream>>>(launch.preprocess);
  cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  status = launch_dependent<attention_bwd_kernel<Config>>(launch.main_blocks, Config::kThreads,
                                                          sizeof(AttentionBwdStorage<Config>), stream, launch.main);
  if (status != cudaSuccess) return status;
  if constexpr (Config::kByKeys) {
    status = launch_dependent<attention_bwd_postprocess_kernel<Config>>(launch.row_blocks, kPostprocessThreads<Config>,
                                                                        0, stream, launch.postprocess);
  } else {
    status =
        launch_dependent<attention_bwd_dq_kernel<Config>>(launch.row_blocks / kDqWarpgroups, Config::kDqThreads,
                                                          sizeof(AttentionBwdDqStorage<Config>), stream, launch.dq);
  }
  if (status != cudaSuccess || launch.main.splits == 1) return status;
  return launch_dependent<attention_bwd_combine_kernel<Config::kType>>(launch.combine_blocks, kCombineThreads, 0,
                                                                       stream, launch.combine);
}

}  // namespace warpgrad::cuda::sm90
