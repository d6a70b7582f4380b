#pragma once

#include "backends/cuda/sm90/attention_bwd/instance.h"
#include "backends/cuda/sm90/attention_bwd/main/kernel.cuh"
#include "backends/cuda/sm90/attention_bwd/postprocess/postprocess.cuh"
#include "backends/cuda/sm90/attention_bwd/preprocess/preprocess.cuh"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_attention_bwd(const AttentionBwdLaunch& launch, cudaStream_t stream) {
  constexpr int kBytes = sizeof(AttentionBwdStorage<Config>);
  const auto main = attention_bwd_kernel<Config>;
  // Once a context would do; that takes longer to remember than to repeat.
  const cudaError_t status = cudaFuncSetAttribute(main, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  constexpr int kRowThreads = Config::kVDim <= 64 ? 8 : Config::kVDim <= 128 ? 16 : 32;  // 8 columns each
  attention_bwd_preprocess_kernel<Config::kType, kRowThreads>
      <<<launch.row_blocks, kPreprocessThreads, 0, stream>>>(launch.preprocess);
  main<<<launch.main_blocks, Config::kThreads, kBytes, stream>>>(launch.main);
  attention_bwd_postprocess_kernel<Config>
      <<<launch.row_blocks, kPostprocessThreads<Config>, 0, stream>>>(launch.postprocess);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
