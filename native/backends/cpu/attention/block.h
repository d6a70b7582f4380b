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
};

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

// A block of query rows of one head against all the keys that it sees.
struct ForwardBlock {
  Format format;
  HeadShape shape;
  ScoreMap score;
  Band band;
  int64_t row;   // the first one, in the sequence
  int num_rows;  // at most forward_block_rows()
  float sink;    // -inf: none
  Rows q;        // of the sequence
  Words k;       // [k_len][words of d]
  Words v;       // [k_len][dv], or rows in pairs
  OutputRows out;
  float* lse;
};

}  // namespace warpgrad::cpu::attention
