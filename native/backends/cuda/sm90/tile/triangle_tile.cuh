#pragma once

// A lower triangular tile [64, 64] of 16-bit elements in shared memory: panels of 16 columns, each [row][32 bytes],
// with 32-byte swizzle: 16-byte chunk c of row r at place c ^ (r / 4 % 2). A panel begins with the rows of its block of
// the diagonal; what is above it no copy writes, so products leave it out or it is cleared once. Tiles begin at
// multiples of 256 bytes.

#include <cstdint>

#include "backends/cuda/sm90/ptx/matrix.cuh"

namespace warpgrad::cuda::sm90 {

struct TriangleTile {
  static constexpr int kRows = 64;
  static constexpr int kBlock = 16;  // columns of a panel
  static constexpr int kPanels = kRows / kBlock;
  static constexpr int kRowBytes = kBlock * 2;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static constexpr int kSwizzleBytes = 256;  // 8 rows of a panel
  static_assert(kBlock * kRowBytes % kSwizzleBytes == 0, "blocks must keep the swizzle's alignment");

  // Where the rows of a panel begin that it has, and their bytes.
  static __device__ constexpr int panel_offset(int panel) { return panel * (kPanelBytes + kBlock * kRowBytes); }
  static __device__ constexpr int panel_bytes(int panel) { return kPanelBytes - panel * kBlock * kRowBytes; }

  // A share of the threads in clearing what is above the rows of the panels; a proxy fence has to follow.
  static __device__ __forceinline__ void clear_above(uint32_t tile_address, int thread_idx, int threads) {
#pragma unroll
    for (int panel = 1; panel < kPanels; ++panel) {
      const int bytes = panel * kBlock * kRowBytes;
      for (int i = thread_idx * 16; i < bytes; i += threads * 16) {
        ptx::st_shared_v4(tile_address + panel * kPanelBytes + i, make_uint4(0, 0, 0, 0));
      }
    }
  }

  // wgmma descriptors:
  // https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
  // The inner dimension of the product runs along the columns. A step is one panel, with what is above its rows.
  static __device__ __forceinline__ uint64_t inner_columns_descriptor(uint32_t tile_address) {
    return descriptor(tile_address, 16);
  }
  static __device__ constexpr uint64_t inner_columns_step(int k16) {
    return static_cast<uint64_t>(k16 * kPanelBytes) >> 4;
  }
  // The inner dimension runs along the rows. A step is the rows of one block: the operand has kBlock * (k16 + 1)
  // columns.
  static __device__ __forceinline__ uint64_t inner_rows_descriptor(uint32_t tile_address) {
    return descriptor(tile_address, kPanelBytes);
  }
  static __device__ constexpr uint64_t inner_rows_step(int k16) {
    return static_cast<uint64_t>(k16 * kBlock * kRowBytes) >> 4;
  }

 private:
  static __device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading_bytes) {
    constexpr uint64_t kSwizzle32 = uint64_t{3} << 62;
    return kSwizzle32 | (static_cast<uint64_t>(kSwizzleBytes >> 4) << 32) |
           (static_cast<uint64_t>(leading_bytes >> 4) << 16) | static_cast<uint64_t>((address & 0x3ffff) >> 4);
  }
};

}  // namespace warpgrad::cuda::sm90
