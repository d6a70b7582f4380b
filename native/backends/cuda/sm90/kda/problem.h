#pragma once

#include "backends/cuda/sm90/kda/layout.h"
#include "core/tensor_view.h"
#include "ops/kda.h"

namespace warpgrad::cuda::sm90 {

// What the stages of KDA have in common: the inputs, and the chunks in device memory.
//
// q, k, v are bfloat16; g is bfloat16 or float32; beta bfloat16, float16 or float32. Others were converted before.
struct KdaProblem {
  const ops::KdaOptions* options;
  TensorView q, k, v, g, beta, a_log, dt_bias;
  int64_t batches, tokens, qk_heads, value_heads, key_dim, value_dim;
  int key_panels, value_panels;  // 1, 2 or 4 panels of 64 columns: the dimensions rounded up
  int num_chunks, num_sequences;
  const KdaChunk* chunks;
  const KdaSequence* sequences;

  // Parts of 128 keys, which have a block each in the gradients.
  int key_parts() const { return (key_panels + 1) / 2; }
  int group() const { return static_cast<int>(value_heads / qk_heads); }
  KdaRecordLayout record() const { return {key_panels, value_panels}; }
};

}  // namespace warpgrad::cuda::sm90
