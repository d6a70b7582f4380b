#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/config.cuh"
#include "backends/cuda/sm90/kda/gradients/params.h"
#include "backends/cuda/sm90/tile/smem_tile.cuh"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

using KdaTokenTile = SwizzledTile<64, 128>;    // [token][key or value]
using KdaOutputTile = SwizzledTile<128, 128>;  // [dO's tokens, then dv's][value]
using KdaScoreTile = SwizzledTile<64, 64>;     // [token][token]
using KdaStateTile = SwizzledTile<64, 128>;    // [value][key], one of two value panels

constexpr int kKdaScalarSlots = 2;  // a tile ahead

// The end of the record: one float a token.
struct KdaTokenScalars {
  float q_norm[64], k_norm[64], beta[64];
};

struct KdaGateScalars {
  float bias[128];  // dt_bias, or 0
  float a;          // exp(A_log), or 1
  int32_t rows;     // of the chunk
};

// What the sums over all keys give for the norms: see finish_norms.
struct KdaTokenSums {
  float q_dq[64], k_dk[64];        // the norm times the complete sum
  float k_to_dq[64], q_to_dk[64];  // of the diagonal of A
};

// Sums over a warp's keys, added up over the warps by a helper.
enum KdaKeySum : int {
  kKdaSumQ,       // q dq
  kKdaSumM,       // k M
  kKdaSumSource,  // k N, without the diagonal
  kKdaSumQK,      // q k, before the norms: for the diagonal
  kNumKdaKeySums,
};

// A and B of the pairs, strictly lower, and their diagonals apart.
struct KdaScores {
  SmemTile<KdaScoreTile> smem_a, smem_b;
  float a_diagonal[64], b_diagonal[64];
};

// What is added for keys or values above 128.
template <bool kWide>
struct KdaWideStorage {};
template <>
struct KdaWideStorage<true> {
  float other_sums[kKdaScalarSlots][kNumKdaKeySums][64];  // of the other block of the cluster
  uint64_t bar_other_sums_full[kKdaScalarSlots];
  uint64_t bar_scores_full, bar_scores_empty;
};

template <class Config>
struct KdaGradientsStorage : KdaScores, KdaWideStorage<Config::kWide> {
  SmemTile<KdaTokenTile> smem_e;
  SmemTile<KdaOutputTile> smem_d_out_dv;
  SmemTile<KdaStateTile> smem_state[2], smem_d_state[2];
  SmemTile<KdaTokenTile> smem_k, smem_q;
  alignas(kSwizzleAtomBytes) uint8_t smem_g[Config::kGateSlots][Config::kGateTileBytes];

  alignas(16) float key_sums[kNumKdaKeySums][Config::kConsumerWarps][64];
  alignas(16) KdaTokenSums token_sums;
  float d_a_log[Config::kConsumerWarps];
  alignas(16) KdaTokenScalars token_scalars[kKdaScalarSlots];
  alignas(16) KdaGateScalars gate_scalars[kKdaScalarSlots];

  // The gradients of q, k and g go out by their slots.
  uint64_t bar_values_full, bar_values_empty;  // E, dO, dv, S, dS, of up to 128 values
  uint64_t bar_qk_full, bar_qk_empty;
  uint64_t bar_g_full[Config::kGateSlots], bar_g_empty[Config::kGateSlots];
  uint64_t bar_token_scalars_full[kKdaScalarSlots], bar_token_scalars_empty[kKdaScalarSlots];
  uint64_t bar_gate_scalars_full[kKdaScalarSlots], bar_gate_scalars_empty[kKdaScalarSlots];
  uint64_t bar_dg_full, bar_dqk_full;               // for the storer
  uint64_t bar_key_sums_full, bar_token_sums_full;  // to the helper that adds up, and back
};

// Named barrier 0 is __syncthreads'.
enum KdaGradientsBarrier : int {
  kKdaBarrierConsumers = 1,
};

// Of a block's 128 keys.
template <class Config>
__device__ __forceinline__ int kda_first_key() {
  return Config::kWide ? 128 * static_cast<int>(blockIdx.x) : 0;
}

struct KdaTilePlace {
  int chunk, head;
};

// The walk of every role over its block's tiles. The grid has the 128-key parts of a tile in x, tiles in y.
template <class Config>
struct KdaTileWalk {
  int tile;        // chunk x value heads + head
  uint32_t count;  // of tiles before it

  __device__ __forceinline__ KdaTileWalk() : tile(blockIdx.y), count(0) {}
  __device__ __forceinline__ bool is_inside(const KdaGradientsParams& params) const { return tile < params.num_tiles; }
  __device__ __forceinline__ void advance() {
    tile += gridDim.y;
    ++count;
  }
  __device__ __forceinline__ KdaTilePlace place(const KdaGradientsParams& params) const {
    return {tile / params.value_heads, tile % params.value_heads};
  }
  __device__ __forceinline__ uint32_t parity() const { return count & 1; }
  __device__ __forceinline__ uint32_t g_slot() const { return count % Config::kGateSlots; }
  __device__ __forceinline__ uint32_t g_parity() const { return count / Config::kGateSlots & 1; }
  __device__ __forceinline__ uint32_t scalar_slot() const { return count % kKdaScalarSlots; }
  __device__ __forceinline__ uint32_t scalar_parity() const { return count / kKdaScalarSlots & 1; }
};

}  // namespace warpgrad::cuda::sm90
