#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/config.cuh"
#include "backends/cuda/sm90/kda/prepare/params.h"

namespace warpgrad::cuda::sm90 {

// Shared memory is the image of the record, and a little behind it. Rooms that are used more than once, in this order:
//
//   W           g | keys for the off-diagonal blocks | keys for W | W
//   Kr, Qd      k, q | Kr, Qd | T in bfloat16 in the room of Kr, when Kr has left
//   Aqk         tables of decays a key (behind the rest, with 256 keys) | blocks of A | T in float16 | Aqk
//   U0          v | U0
//   bias        the gate's bias | decay of block 2
template <class Config>
struct KdaPrepareMemory {
  static constexpr KdaRecordLayout kLayout{Config::kKeyPanels, 0};  // no matter how many value panels, up to U0
  static constexpr int kTableBytes = Config::kKeys * 4;             // one float a key
  static constexpr int kBarrierOffset = 3 * kTableBytes;            // in the scratch
  static constexpr int kBarrierBytes = 32;
  static constexpr bool kTablesInAqk = 14 * kTableBytes <= kKdaPanelBytes;
  static constexpr int kScratchBytes = kBarrierOffset + kBarrierBytes + (kTablesInAqk ? 0 : 14 * kTableBytes);

  uint32_t image;    // addresses of the shared window
  uint32_t scratch;  // behind the image

  __device__ __forceinline__ uint32_t w() const { return image + kLayout.w(); }
  __device__ __forceinline__ uint32_t kr() const { return image + kLayout.kr(); }
  __device__ __forceinline__ uint32_t qd() const { return image + kLayout.qd(); }
  __device__ __forceinline__ uint32_t aqk() const { return image + kLayout.aqk(); }
  __device__ __forceinline__ uint32_t u0() const { return image + kLayout.u0(); }
  // The record's end is counted from its back.
  __device__ __forceinline__ uint32_t decay() const { return beta() - (kLayout.beta() - kLayout.decay()); }
  __device__ __forceinline__ uint32_t q_norm() const { return beta() - 512; }
  __device__ __forceinline__ uint32_t k_norm() const { return beta() - 256; }
  __device__ __forceinline__ uint32_t beta() const { return scratch - 256; }
  // Without the L2 norm, until the norms are written: see KdaRowScales.
  __device__ __forceinline__ uint32_t k_out() const { return q_norm(); }
  __device__ __forceinline__ uint32_t t_out() const { return k_norm(); }

  // Tables; "block" b means the rows 16 b to 16 b + 15: log2 of its decay, the decay from the chunk's start to the
  // block's, from there to the chunk's end (b = 4: none), and that of block 1.
  __device__ __forceinline__ uint32_t tables() const {
    return kTablesInAqk ? aqk() : scratch + kBarrierOffset + kBarrierBytes;
  }
  __device__ __forceinline__ uint32_t block_sum(int b) const { return tables() + b * kTableBytes; }
  __device__ __forceinline__ uint32_t to_start(int b) const { return block_sum(4 + b); }
  __device__ __forceinline__ uint32_t from_start(int b) const { return block_sum(8 + b); }
  __device__ __forceinline__ uint32_t block_1() const { return block_sum(13); }

  __device__ __forceinline__ uint32_t bias() const { return scratch; }
  __device__ __forceinline__ uint32_t block_2() const { return scratch; }
  // The same as to_start(1 or 2), for as long as W takes.
  __device__ __forceinline__ uint32_t kept_to_start(int b) const { return scratch + b * kTableBytes; }
};

// Where a thread stands: in a warp of 16 rows, whose fragments it holds a share of.
template <class Config>
struct KdaPrepareWarp {
  uint32_t lane_idx;
  uint32_t block;  // of rows: the warp's

  // Found anew for each part of the kernel, by a shuffle that ptxas does not see through, so that no addresses are kept
  // in registers from one to the next.
  static __device__ __forceinline__ KdaPrepareWarp here(uint32_t block) {
    const uint32_t lane_idx = threadIdx.x % kWarpThreads;
    return {__shfl_sync(~0u, lane_idx, lane_idx) % kWarpThreads, block};
  }

  __device__ __forceinline__ uint32_t group() const { return lane_idx / 4; }  // the rows group() and group() + 8
  __device__ __forceinline__ uint32_t quad() const { return lane_idx % 4; }  // the columns 2 quad() and the next, + 8 n

  // For ldmatrix and stmatrix: the warp's rows, columns 16 step to 16 step + 15.
  __device__ __forceinline__ uint32_t fragment(uint32_t tile, int step) const {
    return Config::KeyTile::chunk_address(tile, 16 * block + lane_idx % 16, 2 * step + lane_idx / 16);
  }
  // The 16 x 16 block (row block i, column block j) of a matrix [64, 64].
  __device__ __forceinline__ uint32_t square(uint32_t tile, int i, int j) const {
    return Config::Panel::chunk_address(tile, 16 * i + lane_idx % 16, 2 * j + lane_idx / 16);
  }
};

}  // namespace warpgrad::cuda::sm90
