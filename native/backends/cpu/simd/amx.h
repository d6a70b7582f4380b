#pragma once

// The tile instructions (AMX), one function each:
// https://www.intel.com/content/www/us/en/docs/intrinsics-guide/#techs=AMX For *.amx.cc units only. A tile here has 16
// rows of 64 bytes: 16 float32 numbers, or 16 pairs of bfloat16. NOTE: the compiler knows nothing of the tile
// registers; only the blocks between a TileScope's ends may use them.

#include <cstdint>

#include "backends/cpu/simd/vec.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;  // in a row
constexpr int kTileSize = kTileRows * kTileWords;

#if defined(__AMX_BF16__)
// LDTILECFG's operand.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

WARPGRAD_INLINE void ldtilecfg(const TileConfig& config) {
  asm volatile("ldtilecfg (%0)" : : "r"(&config) : "memory");
}
WARPGRAD_INLINE void tilerelease() {
  asm volatile("tilerelease");
}

template <int kTile>
WARPGRAD_INLINE void tilezero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
WARPGRAD_INLINE void tileloadd(const void* base, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride_bytes), "i"(kTile) : "memory");
}
template <int kTile>
WARPGRAD_INLINE void tilestored(void* base, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride_bytes), "i"(kTile) : "memory");
}
// c[16 × 16] += a[16 × 16 pairs] · b[16 pairs × 16]; the even and the odd numbers are summed apart, from 0, and added
// to c at the end. Takes and gives subnormal numbers as 0.
template <int kC, int kA, int kB>
WARPGRAD_INLINE void tdpbf16ps() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
#endif

// While it lives, the calling thread's eight tile registers are whole tiles. Afterwards they hold nothing, so that
// the system need not save them.
class TileScope {
 public:
  TileScope() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 4 * kTileWords;
      config.rows[i] = kTileRows;
    }
    ldtilecfg(config);
  }
  ~TileScope() { tilerelease(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace warpgrad::cpu::WARPGRAD_ISA
