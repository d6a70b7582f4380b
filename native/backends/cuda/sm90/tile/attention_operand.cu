#include "backends/cuda/sm90/tile/attention_operand.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "backends/cuda/sm90/tile/tensor_map.h"

namespace warpgrad::cuda::sm90 {

AttentionOperand::AttentionOperand(const TensorView& view) {
  const int last = view.rank - 1;
  packed = view.rank == 3;
  batches = packed ? 1 : view.shape[0];
  batch_stride = packed ? 0 : view.strides[0];
  rows = view.shape[last - 2];
  row_stride = view.strides[last - 2];
  heads = view.shape[last - 1];
  head_stride = view.strides[last - 1];
  dim = view.shape[last];
}

bool is_copyable(const TensorView& view) {
  if (reinterpret_cast<uintptr_t>(view.data) % kTensorMapAlignment != 0) return false;
  const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
  for (int i = 0; i < view.rank - 1; ++i) {
    if (view.shape[i] > 1 && (view.strides[i] <= 0 || view.strides[i] * element_bytes % kTensorMapAlignment != 0)) {
      return false;
    }
  }
  return view.strides[view.rank - 1] == 1;
}

// Packed: the row dimension's bound is the end of the sequence. A second dimension with the stride of a row adds
// start + length; a third takes the surplus of 2^30 rows away again: it steps by 2^34 bytes less a row, and 2^30 of
// these are 2^64 bytes, which addresses do not see, less 2^30 rows. NOTE: a base address so many rows before the tensor
// would be simpler, but the copy engine faults where it is unmapped.
CUtensorMap make_rows_map(const char* operation, const TensorView& view, int64_t row_end, int box_rows) {
  const AttentionOperand operand(view);
  const TensorMapDim columns = {operand.dim, 1, kPanelColumns};
  const TensorMapDim rows = {row_end, operand.row_stride, box_rows};
  const TensorMapDim heads = {operand.heads, operand.head_stride, 1};
  if (!operand.packed) {
    return make_tensor_map(operation, view.dtype, view.data,
                           {columns, rows, heads, {operand.batches, operand.batch_stride, 1}, {1, 0, 1}});
  }
  constexpr int64_t kAnyCoordinate = std::numeric_limits<int32_t>::max();
  const int64_t wrap_stride = (int64_t{1} << 34) / static_cast<int64_t>(dtype_bytes(view.dtype)) - operand.row_stride;
  return make_tensor_map(
      operation, view.dtype, view.data,
      {columns, rows, heads, {kAnyCoordinate, operand.row_stride, 1}, {kAnyCoordinate, wrap_stride, 1}});
}

int32_t window_bound(int64_t window) {
  constexpr int64_t kUnbounded = int64_t{1} << 30;
  return static_cast<int32_t>(std::min(window, kUnbounded));
}

int multiprocessor_count(const char* operation) {
  constexpr int kKnownDevices = 64;
  static std::atomic<int> known[kKnownDevices];
  int device = 0;
  check_cuda(cudaGetDevice(&device), operation, "cudaGetDevice");
  int count = device < kKnownDevices ? known[device].load(std::memory_order_relaxed) : 0;
  if (count > 0) return count;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), operation,
             "cudaDeviceGetAttribute");
  if (device < kKnownDevices) known[device].store(count, std::memory_order_relaxed);
  return count;
}

}  // namespace warpgrad::cuda::sm90
