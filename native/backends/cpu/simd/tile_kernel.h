#pragma once

// Products of bfloat16 pairs in tiles (amx.h), with float32 sums. For *.amx.cc units only.

#include "backends/cpu/simd/amx.h"
#include "backends/cpu/simd/micro_kernel.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

// The left operand: tile (i, k) starts at data + i * step_m + k * step_k, and its rows are ld words apart.
struct TileRows {
  const PairWord* data;
  int64_t step_m, step_k, ld;
};

namespace tile_detail {

template <int kTile>
WARPGRAD_INLINE void begin_tile(bool accumulate, const float* c, int64_t ldc) {
  accumulate ? tileloadd<kTile>(c, ldc * 4) : tilezero<kTile>();
}

// kM × kN tiles of c: each tile that is read serves two products where there are two.
template <int kM, int kN>
WARPGRAD_INLINE void multiply_block(int64_t depth, TileRows a, const PairWord* b, int64_t ldb, bool accumulate,
                                    float* c, int64_t ldc) {
  float* lower = c + kTileRows * ldc;
  begin_tile<0>(accumulate, c, ldc);
  if constexpr (kN == 2) begin_tile<1>(accumulate, c + kTileWords, ldc);
  if constexpr (kM == 2) begin_tile<2>(accumulate, lower, ldc);
  if constexpr (kM == 2 && kN == 2) begin_tile<3>(accumulate, lower + kTileWords, ldc);
  for (int64_t k = 0; k < depth; ++k, a.data += a.step_k, b += kTileRows * ldb) {
    tileloadd<4>(a.data, a.ld * 4);
    tileloadd<6>(b, ldb * 4);
    tdpbf16ps<0, 4, 6>();
    if constexpr (kN == 2) {
      tileloadd<7>(b + kTileWords, ldb * 4);
      tdpbf16ps<1, 4, 7>();
    }
    if constexpr (kM == 2) {
      tileloadd<5>(a.data + a.step_m, a.ld * 4);
      tdpbf16ps<2, 5, 6>();
      if constexpr (kN == 2) tdpbf16ps<3, 5, 7>();
    }
  }
  tilestored<0>(c, ldc * 4);
  if constexpr (kN == 2) tilestored<1>(c + kTileWords, ldc * 4);
  if constexpr (kM == 2) tilestored<2>(lower, ldc * 4);
  if constexpr (kM == 2 && kN == 2) tilestored<3>(lower + kTileWords, ldc * 4);
}

template <int kN>
WARPGRAD_INLINE void multiply_panel(int64_t m, int64_t depth, TileRows a, const PairWord* b, int64_t ldb,
                                    bool accumulate, float* c, int64_t ldc) {
  int64_t i = 0;
  for (; i + 2 <= m; i += 2, a.data += 2 * a.step_m) {
    multiply_block<2, kN>(depth, a, b, ldb, accumulate, c + i * kTileRows * ldc, ldc);
  }
  if (i < m) multiply_block<1, kN>(depth, a, b, ldb, accumulate, c + i * kTileRows * ldc, ldc);
}

}  // namespace tile_detail

// c[m][n] = or += a[m][depth] · b[depth][n], sides in tiles.
static void multiply_tiles(int64_t m, int64_t n, int64_t depth, TileRows a, const PairWord* b, int64_t ldb,
                           bool accumulate, float* c, int64_t ldc) {
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    tile_detail::multiply_panel<2>(m, depth, a, b + j * kTileWords, ldb, accumulate, c + j * kTileWords, ldc);
  }
  if (j < n) tile_detail::multiply_panel<1>(m, depth, a, b + j * kTileWords, ldb, accumulate, c + j * kTileWords, ldc);
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
