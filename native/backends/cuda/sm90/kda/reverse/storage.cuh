#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/reverse/config.cuh"
#include "backends/cuda/sm90/tile/smem_tile.cuh"
#include "backends/cuda/sm90/tile/triangle_tile.cuh"

namespace warpgrad::cuda::sm90 {

// What is loaded of one chunk, but T and Aqk. dv takes the place of dO, and dS that of Kr, before they leave.
template <class Config>
struct KdaReverseStage {
  SmemTile<typename Config::KeyTile> kd, kr, qd;
  SmemTile<typename Config::ValueTile> d_out;
};

template <class Config>
struct KdaReverseStorage {
  KdaReverseStage<Config> stages[Config::kStages];
  SmemTile<TriangleTile> t[Config::kTriangles], aqk[Config::kTriangles];
  alignas(16) float decay[Config::kStages][Config::kKeys];

  uint64_t bar_full[Config::kStages];   // copy engine
  uint64_t bar_empty[Config::kStages];  // the consumers have read it
  uint64_t bar_out[Config::kStages];    // the 4 consumer warps have written dv and dS
  uint64_t bar_sent[Config::kStages];   // the storer has read them
  // Where T and Aqk are not part of a stage
  uint64_t bar_t_full, bar_t_empty, bar_aqk_full, bar_aqk_empty;
};

// Named barrier 0 is __syncthreads'.
enum KdaReverseBarrier : int {
  kReverseBarrierKrRead = 1,  // the consumers
};

}  // namespace warpgrad::cuda::sm90
