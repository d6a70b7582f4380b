#pragma once

#include <cstdint>

#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {

// The room of a SwizzledTile in shared memory.
template <class Tile>
struct alignas(kSwizzleAtomBytes) SmemTile {
  uint8_t bytes[Tile::kBytes];
};

// An array of them that may be empty.
template <int kCount, class Tile>
struct SmemTiles {
  SmemTile<Tile> tiles[kCount];
};
template <class Tile>
struct SmemTiles<0, Tile> {};

}  // namespace warpgrad::cuda::sm90
