#pragma once

#include "backends/cuda/sm90/kda/gradients/wide/instance.h"
#include "backends/cuda/sm90/kda/gradients/wide/kernel.cuh"
#include "backends/cuda/sm90/shared_memory.h"

namespace warpgrad::cuda::sm90 {

template <class Config>
cudaError_t run_kda_wide_gradients(const KdaGradientsParams& params, int clusters, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KdaGradientsStorage<Config>);
  const cudaError_t status = allow_shared_memory<kda_wide_gradients_kernel<Config>>(kBytes);
  if (status != cudaSuccess) return status;
  const unsigned key_parts = params.key_parts;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = key_parts;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(key_parts, clusters);
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kda_wide_gradients_kernel<Config>, params);
}

}  // namespace warpgrad::cuda::sm90
