#include "backends/cpu/simd/tile_kernel.h"
#include "core/dtype.h"

// The yardstick for bfloat16 products in tiles: see run_micro_kernel in copy_convert.isa.cc.
namespace warpgrad::cpu::WARPGRAD_ISA {

double run_micro_kernel(DType, int64_t repeats, volatile float* sink) {
  constexpr int64_t kDepth = 4;  // tiles: 128 numbers
  alignas(64) PairWord a[2 * kDepth * kTileSize], b[2 * kDepth * kTileSize];
  alignas(64) float c[4 * kTileSize];
  for (PairWord& word : a) word = 0x3c003c00;
  for (PairWord& word : b) word = 0x3c003c00;
  const TileScope scope;
  const TileRows rows{a, kDepth * kTileSize, kTileSize, kTileWords};
  for (int64_t i = 0; i < repeats; ++i) {
    multiply_tiles(2, 2, kDepth, rows, b, 2 * kTileWords, false, c, 2 * kTileWords);
  }
  *sink = c[0];
  return 2.0 * 4 * kDepth * kTileSize * 2 * kTileRows * static_cast<double>(repeats);
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
