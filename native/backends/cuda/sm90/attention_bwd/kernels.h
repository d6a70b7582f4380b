#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/instance.h"
#include "core/dtype.h"

namespace warpgrad::cuda::sm90 {

constexpr size_t kAttentionBwdCounterBytes = 16;  // keeps the sequences behind them aligned

// A row of the dispatch table.
struct AttentionBwdKernel {
  DType dtype;
  int qk_dim, v_dim;  // the largest head dimensions; smaller ones are filled with zeros
  bool mapped_scores;
  int block_m, block_n;
  bool dq_apart;         // a kernel of its own computes dQ
  int64_t block_floats;  // else: of one row block's accumulator of dQ
  cudaError_t (*run)(const AttentionBwdLaunch& launch, cudaStream_t stream);
};

// The first row that fits; throws Error(kUnsupported) with the list of what does.
const AttentionBwdKernel& find_attention_bwd_kernel(DType dtype, int64_t qk_dim, int64_t v_dim, bool mapped_scores);

}  // namespace warpgrad::cuda::sm90
