#pragma once

// A tile of 16-bit elements in shared memory as the copy engine writes it with 128-byte swizzle: panels of 64 columns,
// each [row][128 bytes], 16-byte chunk c of row r at place c ^ (r % 8). Tiles begin at multiples of 1024 bytes.

#include <cstdint>

namespace warpgrad::cuda::sm90 {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kSwizzleAtomBytes = 1024;  // 8 rows of a panel

constexpr int panel_count(int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

template <int kTileRows, int kTileColumns>
struct SwizzledTile {
  static constexpr int kRows = kTileRows;
  static constexpr int kPanels = panel_count(kTileColumns);
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;
  static_assert(kPanelBytes % kSwizzleAtomBytes == 0, "panels must keep the swizzle's alignment");

  // Shared-memory address of the 16-byte chunk `chunk` (8 columns) of row `row`.
  static __device__ __forceinline__ uint32_t chunk_address(uint32_t tile_address, uint32_t row, uint32_t chunk) {
    return tile_address + (chunk >> 3) * kPanelBytes + row * kPanelRowBytes + (((chunk & 7) ^ (row & 7)) << 4);
  }

  // wgmma descriptors:
  // https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
  // The inner dimension of the product runs along the columns (Q and K of Q Kᵀ).
  static __device__ __forceinline__ uint64_t inner_columns_descriptor(uint32_t tile_address) {
    return descriptor(tile_address, 16, kSwizzleAtomBytes);
  }
  static __device__ constexpr uint64_t inner_columns_step(int k16) {
    return static_cast<uint64_t>((k16 / 4) * kPanelBytes + (k16 % 4) * 32) >> 4;
  }
  // The inner dimension runs along the rows (V of P V).
  static __device__ __forceinline__ uint64_t inner_rows_descriptor(uint32_t tile_address) {
    return descriptor(tile_address, kPanelBytes, kSwizzleAtomBytes);
  }
  static __device__ constexpr uint64_t inner_rows_step(int k16) {
    return static_cast<uint64_t>(k16 * 16 * kPanelRowBytes) >> 4;
  }

  // To a later row (a multiple of 8), to the next panel.
  static __device__ constexpr uint64_t rows_step(int rows) { return static_cast<uint64_t>(rows * kPanelRowBytes) >> 4; }
  static constexpr uint64_t kPanelStep = static_cast<uint64_t>(kPanelBytes) >> 4;
  static constexpr uint64_t kStageStep = static_cast<uint64_t>(kBytes) >> 4;  // to the next tile of a ring

 private:
  static __device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading_bytes,
                                                        uint32_t stride_bytes) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    return kSwizzle128 | (static_cast<uint64_t>(stride_bytes >> 4) << 32) |
           (static_cast<uint64_t>(leading_bytes >> 4) << 16) | static_cast<uint64_t>((address & 0x3ffff) >> 4);
  }
};

}  // namespace warpgrad::cuda::sm90
