#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/params.h"
#include "core/dtype.h"
#include "ops/attention.h"

namespace warpgrad::cuda::sm90 {

constexpr size_t kAttentionFwdCounterBytes = 16;  // keeps the sequences behind them aligned

// A row of the dispatch table.
struct AttentionFwdKernel {
  DType dtype;
  int qk_dim, v_dim;  // largest head dimensions; smaller ones are filled with zeros
  bool mapped_scores;
  int min_keys;  // that a row sees on average, for which this is the better choice
  int block_n, consumer_warpgroups;
  cudaError_t (*run)(const AttentionFwdKernelParams& params, int blocks, cudaStream_t stream);
};

// The first row that fits; throws Error(kUnsupported) with the list of what does.
const AttentionFwdKernel& find_attention_fwd_kernel(DType dtype, int64_t qk_dim, int64_t v_dim, bool mapped_scores,
                                                    int64_t mean_keys);

// Whether scores need more than a positive factor before the softmax.
inline bool attention_fwd_maps_scores(const ops::AttentionOptions& options) {
  return (options.softcap > 0 && options.scale != 0) || options.scale < 0;
}

}  // namespace warpgrad::cuda::sm90
