#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/tensor_view.h"

namespace warpgrad::cuda::sm90 {

// One of the tensors of attention, [batch, row, head, column] or packed [row, head, column]; strides in elements.
struct AttentionOperand {
  bool packed;
  int64_t batches, batch_stride;  // 1 and 0 when packed
  int64_t rows, row_stride;
  int64_t heads, head_stride;
  int64_t dim;

  explicit AttentionOperand(const TensorView& view);
};

// Whether the copy engine can read it as it lies; otherwise it has to be copied to a contiguous tensor first.
bool is_copyable(const TensorView& view);

// The row bound of the map of a packed operand.
constexpr int32_t kPackedRowEnd = 1 << 30;

// A map [wrap][batch][head][row][column] for boxes of `box_rows` rows of 64 columns; row coordinates from `row_end` on
// read as zeros. Dense: the row, and the batch; wrap is 0. Packed, with kPackedRowEnd: row j of a sequence is at the
// coordinate kPackedRowEnd - length + j, batch is its start + length and wrap is kPackedRowEnd, so that whatever lies
// behind the sequence reads as zeros.
CUtensorMap make_rows_map(const char* operation, const TensorView& view, int64_t row_end, int box_rows);

// A side of a band in 32 bits: no limit becomes one beyond any key, which is safe to add.
int32_t window_bound(int64_t window);

// Of the current device.
int multiprocessor_count(const char* operation);

}  // namespace warpgrad::cuda::sm90
