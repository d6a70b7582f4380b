#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/config.cuh"
#include "backends/cuda/sm90/kda/prepare/params.h"

namespace warpgrad::cuda::sm90 {

// Shared memory: the parts of the record, in its order but for T, and scratch. Rooms that are used more than once, in
// this order:
//
//   Kd          g | keys for the off-diagonal blocks | Kd
//   Kr          k | Kr | T, when Kr has left
//   Qd          q | Qd
//   Aqk         tables of decays a key | columns of A | Aqk
//   bias        the gate's bias | decay of block 2
//   squares     more tables | blocks of the inverse in float16
template <class Config>
struct KdaPrepareMemory {
  static constexpr KdaRecordLayout kRecord{Config::kKeyPanels};
  static constexpr int kTileBytes = Config::kKeyPanels * kKdaPanelBytes;
  static constexpr int kTableBytes = Config::kKeys * 4;  // one float a key
  static constexpr int kSquareBytes = 16 * 16 * 2;
  static constexpr int kBarrierBytes = 32;

  static constexpr int kKd = 0, kKr = kTileBytes, kQd = 2 * kTileBytes, kAqk = 3 * kTileBytes;
  static constexpr int kT = kKr;
  static constexpr int kTail = kAqk + kKdaPanelBytes;  // from the record's decay to its end
  static constexpr int kTailBytes = kRecord.bytes() - kRecord.decay();
  static constexpr int kBias = kTail + kTailBytes;
  static constexpr int kToStart = kBias + kTableBytes;
  static constexpr int kBarriers = kToStart + 2 * kTableBytes;
  static constexpr int kSquares = kBarriers + kBarrierBytes;
  static constexpr int kBytes = kSquares + std::max(4 * kTableBytes, 7 * kSquareBytes);
  static_assert(8 * kTableBytes <= kKdaPanelBytes);

  uint32_t image;  // address of the shared window

  __device__ __forceinline__ uint32_t kd() const { return image + kKd; }
  __device__ __forceinline__ uint32_t kr() const { return image + kKr; }
  __device__ __forceinline__ uint32_t qd() const { return image + kQd; }
  __device__ __forceinline__ uint32_t aqk() const { return image + kAqk; }
  __device__ __forceinline__ uint32_t t() const { return image + kT; }
  __device__ __forceinline__ uint32_t decay() const { return image + kTail; }
  __device__ __forceinline__ uint32_t q_norm() const { return tail(kRecord.q_norm()); }
  __device__ __forceinline__ uint32_t k_norm() const { return tail(kRecord.k_norm()); }
  __device__ __forceinline__ uint32_t beta() const { return tail(kRecord.beta()); }
  // Without the L2 norm, until the norms are written: see KdaRowScales.
  __device__ __forceinline__ uint32_t beta_in() const { return q_norm(); }
  __device__ __forceinline__ uint32_t source_out() const { return k_norm(); }

  // Tables; "block" b means the rows 16 b to 16 b + 15: log2 of its decay, the decay from the chunk's start to the
  // block's, from there to the chunk's end (b = 4: none; over 2^kSourceLog2), and those of the blocks 1 and 2. Those
  // behind the bias stay.
  __device__ __forceinline__ uint32_t block_sum(int b) const { return aqk() + b * kTableBytes; }
  __device__ __forceinline__ uint32_t to_start(int b) const { return b % 3 == 0 ? more_table(b / 3) : kept_table(b); }
  __device__ __forceinline__ uint32_t from_start(int b) const { return b == 4 ? more_table(2) : block_sum(4 + b); }
  __device__ __forceinline__ uint32_t block_1() const { return more_table(3); }
  __device__ __forceinline__ uint32_t block_2() const { return bias(); }
  __device__ __forceinline__ uint32_t bias() const { return image + kBias; }

  // 16 x 16 blocks in float16, of four 8 x 8 matrices each: those of T on the diagonal and T_10, Y_20 and Y_21.
  __device__ __forceinline__ uint32_t t_block(int b) const { return image + kSquares + b * kSquareBytes; }
  __device__ __forceinline__ uint32_t t_10() const { return t_block(4); }
  __device__ __forceinline__ uint32_t y_2(int j) const { return t_block(5 + j); }

 private:
  __device__ __forceinline__ uint32_t tail(int at) const { return image + kTail + at - kRecord.decay(); }
  __device__ __forceinline__ uint32_t kept_table(int b) const { return image + kToStart + (b - 1) * kTableBytes; }
  __device__ __forceinline__ uint32_t more_table(int i) const { return image + kSquares + i * kTableBytes; }
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
  // The 16 x 16 block of the warp's rows and column block j of a matrix [64, 64].
  __device__ __forceinline__ uint32_t square(uint32_t tile, int j) const {
    return Config::Panel::chunk_address(tile, 16 * block + lane_idx % 16, 2 * j + lane_idx / 16);
  }
  // One of KdaPrepareMemory's 16 x 16 blocks.
  __device__ __forceinline__ uint32_t block_fragment(uint32_t address) const { return address + 16 * lane_idx; }
};

}  // namespace warpgrad::cuda::sm90
