#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/sm90/kda/prepare/config.cuh"
#include "backends/cuda/sm90/kda/prepare/params.h"

namespace warpgrad::cuda::sm90 {

// Shared memory: Kd, Kr, Qd and the record's end, and scratch. Rooms that are used more than once, in this order:
//
//   Kd          g | keys for the off-diagonal blocks | Kd
//   Kr, Qd      k, q | Kr, Qd | T and Aqk, when those have left
//   bias        the gate's bias | decay of block 2
//   tables      log2 of decays, and a triangle of ones | decays | columns of A, 80 bytes each | T and Y in blocks of
//   float16
template <class Config>
struct KdaPrepareMemory {
  static constexpr KdaRecordLayout kRecord{Config::kKeyPanels};
  static constexpr int kTileBytes = Config::kKeyPanels * kKdaPanelBytes;
  static constexpr int kTableBytes = Config::kKeys * 4;  // one float a key
  static constexpr int kSquareBytes = 16 * 16 * 2;
  static constexpr int kColumnBytes = 80;  // 16 floats; the banks of neighbours differ
  static constexpr int kWarpBytes = 16 * kColumnBytes;
  static constexpr int kBarrierBytes = 32;

  static constexpr int kKd = 0, kKr = kTileBytes, kQd = 2 * kTileBytes;
  static constexpr int kT = kKr, kAqk = kT + kKdaTriangleBytes;
  static constexpr int kTail = 3 * kTileBytes;  // from the record's decay to its end
  static constexpr int kTailBytes = kRecord.bytes() - kRecord.decay();
  static constexpr int kKeptTables = kTail + kTailBytes;
  static constexpr int kBarriers = kKeptTables + 3 * kTableBytes;
  static constexpr int kTables = kBarriers + kBarrierBytes;
  static constexpr int kBytes = kTables + std::max(8 * kTableBytes, 4 * kWarpBytes);
  static_assert(2 * kSquareBytes <= kWarpBytes && kSquareBytes <= 4 * kTableBytes);

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

  // Tables; "block" b means the rows 16 b to 16 b + 15: log2 of its decay, in whose place comes the decay from the
  // block's start to the chunk's end (b = 4: none), over 2^kSourceLog2; the decay from the chunk's start to the
  // block's, and those of the blocks 1 and 2.
  __device__ __forceinline__ uint32_t block_sum(int b) const { return table(b); }
  __device__ __forceinline__ uint32_t from_start(int b) const { return table(b); }
  __device__ __forceinline__ uint32_t to_start(int b) const { return b % 3 == 0 ? table(5 + b / 3) : kept_table(b); }
  __device__ __forceinline__ uint32_t block_1() const { return table(7); }
  __device__ __forceinline__ uint32_t block_2() const { return bias(); }
  __device__ __forceinline__ uint32_t bias() const { return kept_table(0); }

  // 16 x 16 blocks in float16, of four 8 x 8 matrices each.
  static __device__ __forceinline__ uint32_t element(uint32_t block, int row, int column) {
    return block + 128 * (row / 8 + 2 * (column / 8)) + 16 * (row % 8) + 2 * (column % 8);
  }
  __device__ __forceinline__ uint32_t triangle() const { return table(4); }

  // A's columns of a diagonal block, and then such blocks.
  __device__ __forceinline__ uint32_t columns(int b) const { return image + kTables + b * kWarpBytes; }
  __device__ __forceinline__ uint32_t t_ii(int b) const { return columns(b); }
  __device__ __forceinline__ uint32_t t_10() const { return t_ii(1) + kSquareBytes; }
  __device__ __forceinline__ uint32_t y_2(int j) const { return t_ii(2 * j) + kSquareBytes; }

 private:
  __device__ __forceinline__ uint32_t tail(int at) const { return image + kTail + at - kRecord.decay(); }
  __device__ __forceinline__ uint32_t kept_table(int i) const { return image + kKeptTables + i * kTableBytes; }
  __device__ __forceinline__ uint32_t table(int i) const { return image + kTables + i * kTableBytes; }
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
  // The 16 x 16 block of the warp's rows and column block j of T or Aqk.
  __device__ __forceinline__ uint32_t triangle_block(uint32_t triangle, int j) const {
    constexpr int kRowBytes = kKdaTrianglePanelBytes / kKdaChunkRows;
    const uint32_t row = lane_idx % 16, unit = lane_idx / 16 ^ row / 4 % 2;
    return triangle + kda_triangle_panel(j) + (16 * (block - j) + row) * kRowBytes + unit * 16;
  }
  // One of KdaPrepareMemory's 16 x 16 blocks.
  __device__ __forceinline__ uint32_t block_fragment(uint32_t address) const { return address + 16 * lane_idx; }
};

}  // namespace warpgrad::cuda::sm90
