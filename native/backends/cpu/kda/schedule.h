#pragma once

// What the forward and the backward schedule share.

#include <vector>

#include "backends/cpu/kda/workspace.h"

namespace warpgrad::cpu::kda {

// Chunks of all sequences in step: those numbered begin, ..., begin + kWindow - 1 within their sequence. The schedule
// with tasks smaller than a sequence works window by window, so its workspace doesn't grow with the length.
constexpr int64_t kWindow = 32;

struct Window {
  explicit Window(const Chunks& all, int64_t begin = 0);
  void advance() { *this = Window(*all, begin + kWindow); }
  int64_t end() const { return begin + kWindow; }
  bool is_last(const Sequence& sequence) const;  // the window in which the state leaves the sequence
  int64_t max_chunks() const;                    // of any window

  const Chunks* all;
  int64_t begin;
  std::vector<int64_t> chunks;          // their numbers, sequence by sequence
  std::vector<int64_t> first_position;  // of each sequence in `chunks`
};

// A worker's memory for whole sequences.
struct ForwardMemory {
  Prepared prepared;
  float* S;
  float* scratch;
};
int64_t forward_memory_elems(const Problem& problem);
ForwardMemory forward_memory(const Problem& problem, float* memory, Prefetch* ahead);

// The forward of one sequence and head.
void forward_sequence(const Problem& problem, const Kernels& kernels, const Sequence& sequence, int64_t n, int64_t head,
                      const KeptTensors& kept, const ForwardMemory& memory);

// The forward in tasks of chunks and of column blocks.
void forward_in_windows(const Problem& problem, const Chunks& chunks, const KeptTensors& kept, ExecContext& context);

// Zeros in the rows of a packed output past the last sequence.
void zero_after(const TensorView& output, const ops::KdaOptions& options);

}  // namespace warpgrad::cpu::kda
