#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/rows.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdRowBlock {
  int32_t batch, head;
  int32_t num_rows;   // at most block_m; 0 where the padding of a sequence leaves a whole block unused
  int64_t first_row;  // of the tensor, within the batch
  int64_t lse_start;  // of the first row in lse
};

// The sequence that row block `local` of a head belongs to.
__device__ __forceinline__ int find_row_sequence(const AttentionBwdSequence* sequences, int count, int local) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (sequences[middle].first_row_block <= local) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ AttentionBwdRowBlock find_row_block(const AttentionBwdRows& rows, int row_block) {
  const int head_and_batch = row_block / rows.row_blocks;
  const int local = row_block - head_and_batch * rows.row_blocks;
  AttentionBwdRowBlock block;
  block.batch = head_and_batch / rows.num_heads;
  block.head = head_and_batch - block.batch * rows.num_heads;
  int64_t end = rows.q_rows;
  block.first_row = static_cast<int64_t>(local) * rows.block_m;
  if (rows.sequences != nullptr) {
    const AttentionBwdSequence& sequence = rows.sequences[find_row_sequence(rows.sequences, rows.num_sequences, local)];
    block.first_row = sequence.q_start + static_cast<int64_t>(local - sequence.first_row_block) * rows.block_m;
    end = sequence.q_start + static_cast<int64_t>(sequence.q_len);
  }
  block.num_rows = static_cast<int>(max(int64_t{0}, min(end - block.first_row, int64_t{rows.block_m})));
  block.lse_start = head_and_batch * rows.q_rows + block.first_row;
  return block;
}

}  // namespace warpgrad::cuda::sm90
