#include "backends/cpu/kda/schedule.h"

#include <algorithm>
#include <cstring>

namespace warpgrad::cpu::kda {

Window::Window(const Chunks& all, int64_t begin) : all(&all), begin(begin) {
  for (const Sequence& sequence : all.sequences) {
    first_position.push_back(static_cast<int64_t>(chunks.size()));
    for (int64_t i = begin; i < std::min(sequence.num_chunks, end()); ++i) chunks.push_back(sequence.first_chunk + i);
  }
}

bool Window::is_last(const Sequence& sequence) const {
  const int64_t last = std::max<int64_t>(sequence.num_chunks - 1, 0);
  return begin <= last && last < end();
}

int64_t Window::max_chunks() const {
  int64_t count = 0;
  for (const Sequence& sequence : all->sequences) count += std::min(sequence.num_chunks, kWindow);
  return count;
}

void zero_after(const TensorView& output, const ops::KdaOptions& options) {
  if (options.cu_seqlens.empty() || !output) return;
  const int64_t used = options.cu_seqlens.back(), rows = output.shape[1];
  if (used >= rows || output.num_elems() == 0) return;
  const size_t row_bytes = output.num_elems() / rows * dtype_bytes(output.dtype);
  std::memset(output.as<char>() + used * row_bytes, 0, (rows - used) * row_bytes);
}

}  // namespace warpgrad::cpu::kda
