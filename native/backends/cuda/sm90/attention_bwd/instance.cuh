#pragma once

#include "backends/cuda/sm90/attention_bwd/instance.h"
#include "backends/cuda/sm90/attention_bwd/main/kernel.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/combine.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/postprocess.cuh"
#include "backends/cuda/sm90/attention_bwd/preprocess/preprocess.cuh"

namespace warpgrad::cuda::sm90 {

// Enqueues a kernel that may be started while the one before it ends; it waits itself for what that one wrote.
template <class Params>
cudaError_t launch_dependent(void (*kernel)(Params), int blocks, int threads, int smem_bytes, cudaStream_t stream,
                             const Params& params) {
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
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <class Config>
cudaError_t run_attention_bwd(const AttentionBwdLaunch& launch, cudaStream_t stream) {
  constexpr int kBytes = sizeof(AttentionBwdStorage<Config>);
  const auto main = attention_bwd_kernel<Config>;
  // Once a context would do; that takes longer to remember than to repeat.
  cudaError_t status = cudaFuncSetAttribute(main, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  constexpr int kRowThreads = Config::kVDim <= 64 ? 8 : Config::kVDim <= 128 ? 16 : 32;  // 8 columns each
  attention_bwd_preprocess_kernel<Config::kType, kRowThreads>
      <<<launch.row_blocks, kPreprocessThreads, 0, stream>>>(launch.preprocess);
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  status = launch_dependent(main, launch.main_blocks, Config::kThreads, kBytes, stream, launch.main);
  if (status != cudaSuccess) return status;
  status = launch_dependent(attention_bwd_postprocess_kernel<Config>, launch.row_blocks, kPostprocessThreads<Config>, 0,
                            stream, launch.postprocess);
  if (status != cudaSuccess || launch.main.splits == 1) return status;
  return launch_dependent(attention_bwd_combine_kernel<Config::kType>, launch.combine_blocks, kCombineThreads, 0,
                          stream, launch.combine);
}

}  // namespace warpgrad::cuda::sm90
