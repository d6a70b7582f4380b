#pragma once

// What the drivers (forward.cc, backward.cc) hand to the kernels of the instruction sets: plain data only.

#include <cstdint>

#include "backends/cpu/attention/band.h"
#include "core/dtype.h"

namespace warpgrad::cpu::attention {

// Rows of one head of one sequence; the elements of a row are neighbours.
struct Rows {
  const void* data;
  int64_t stride;  // in elements
};
struct OutputRows {
  void* data;
  int64_t stride;
};

// How operands enter the products: as float32 numbers, or as pairs of bfloat16 along the summed dimension. A word is
// one or the other: 4 bytes.
struct Format {
  DType dtype;  // of the tensors
  bool pairs;
  bool tiles;  // pairs, packed for the tile instructions (tile_products.h)
};

constexpr int kMaxDim = 256;  // of a head

// Sides of operands packed in tiles: 16 × 16 words, pairs of 32 keys.
constexpr int kTileKeys = 32;
static inline int64_t tile_keys(int64_t keys) {
  return (keys + kTileKeys - 1) / kTileKeys * kTileKeys;
}
static inline int64_t tile_words(int64_t elems) {
  return (elems + 31) / 32 * 16;
}  // where the sum runs along a row
static inline int64_t tile_rows(int64_t elems) {
  return (elems + 15) / 16 * 16;
}  // where it runs over rows

// Packed rows, or rows that serve as they are.
struct Words {
  const void* data;
  int64_t ld;  // in words
};

// From a product q·k to the score in units of log2: factor · x, or capped · tanh(factor · x) with a softcap.
// The sign of the scale goes into q, so factor > 0; a scale of 0 becomes q · 0.
struct ScoreMap {
  float q_sign;  // 1, -1 or 0
  float factor;
  float capped;  // 0: no softcap
};

struct HeadShape {
  int64_t d, dv;
};

// A block of query rows against all the keys that it sees: rows of one head, or the heads of a group in a sequence of
// one query, so that they read their keys together.
struct ForwardBlock {
  Format format;
  HeadShape shape;
  ScoreMap score;
  Band band;
  int64_t row;   // the first one
  int num_rows;  // at most forward_block_rows()
  bool rows_are_heads;
  const float* sink;  // null: none
  int64_t sink_stride;
  Rows q;   // of the sequence, or of the group
  Words k;  // [k_len][words of d], or tiles
  Words v;  // [k_len][dv], or rows in pairs, or tiles
  OutputRows out;
  float* lse;
  int64_t lse_stride;
};

// Backward: query rows go by blocks, keys by tiles inside the key block that a task owns.
constexpr int kQueryBlock = 64;
constexpr int kKeyTile = 64;

// Gradients of one block of keys, over all query heads that read them.
struct BackwardHead {
  Rows q, d_out;          // of the sequence
  const float* lse_log2;  // by row: lse in units of log2, +inf where there is none
  const float* delta;     // by row: D = Σ d_out out
  OutputRows dq;
  float* dq_sums;           // [query blocks][d][kQueryBlock]; null if there is one key block
  int32_t* next_key_block;  // by query block: whose turn it is to add to dq
};

struct BackwardTask {
  Format format;
  HeadShape shape;
  ScoreMap score;
  float scale;
  Band band;
  int64_t key_block_rows, key_block;
  Rows k, v;  // of the sequence
  OutputRows dk, dv;
  const BackwardHead* heads;
  int64_t num_heads;
  float* workspace;  // backward_workspace_elems floats
  // Blocks until *turn == value; false if the work has been stopped.
  bool (*wait_for_turn)(const void* context, const int32_t* turn, int32_t value);
  const void* context;
};

// The part of the backward that is done for each row beforehand.
struct PrepareTask {
  DType dtype;
  int64_t dv;
  int64_t row;
  int num_rows;
  Rows d_out, out;
  const float* lse;
  float sink;
  float *lse_log2, *delta, *d_sink;  // by row, by row, one
};

// The key blocks that a block of query rows sees: [first, end).
struct KeyBlocks {
  int64_t first, end;
};
static inline KeyBlocks key_blocks_of(const Band& band, int64_t key_block_rows, int64_t row, int64_t num_rows) {
  const int64_t begin = first_key(band, row), end = end_key(band, row + num_rows - 1);
  if (begin >= end) return {0, 0};
  return {begin / key_block_rows, (end - 1) / key_block_rows + 1};
}

}  // namespace warpgrad::cpu::attention
