#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/sm90/kda/reverse/params.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// What a block works on, and where that is in device memory.
struct KdaReverseBlock {
  int head, value_panel;
  KdaSequence sequence;

  __device__ __forceinline__ explicit KdaReverseBlock(const KdaReverseParams& params) {
    const int pair = blockIdx.x / params.value_panels;
    value_panel = blockIdx.x - pair * params.value_panels;
    const int place = pair / params.value_heads;
    head = pair - place * params.value_heads;
    sequence = params.sequences[place];
  }

  // The chunk of step i: the last one comes first.
  __device__ __forceinline__ int chunk(int step) const { return sequence.first_chunk + sequence.num_chunks - 1 - step; }
  __device__ __forceinline__ size_t image(const KdaReverseParams& params, int step) const {
    return static_cast<size_t>(chunk(step)) * params.value_heads + head;
  }
  __device__ __forceinline__ int first_value() const { return value_panel * kPanelColumns; }
};

}  // namespace warpgrad::cuda::sm90
