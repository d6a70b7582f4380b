#pragma once

// Rows that the next chunk will read or write, fetched a few at a time while this chunk computes: a chunk's rows lie
// far apart in memory ([tokens, heads, ...]), where the hardware doesn't foresee them.

#include <cstdint>

namespace warpgrad::cpu::kda {

struct PrefetchRows {
  const char* data;
  int64_t stride_bytes;
  int row_bytes;
  int num_rows;
  bool for_write;
};

struct Prefetch {
  static constexpr int kMaxTensors = 12;
  PrefetchRows tensors[kMaxTensors];
  int num_tensors = 0;
  int tensor = 0, row = 0;  // the next row to fetch
};

// One row; called once a tile of a product.
static inline __attribute__((always_inline)) void fetch_ahead(Prefetch* ahead) {
  if (ahead->tensor == ahead->num_tensors) return;
  const PrefetchRows& rows = ahead->tensors[ahead->tensor];
  const char* data = rows.data + ahead->row * rows.stride_bytes;
  if (rows.for_write) {
    for (int byte = 0; byte < rows.row_bytes; byte += 64) __builtin_prefetch(data + byte, 1, 2);
  } else {
    for (int byte = 0; byte < rows.row_bytes; byte += 64) __builtin_prefetch(data + byte, 0, 2);
  }
  if (++ahead->row < rows.num_rows) return;
  ahead->row = 0;
  ++ahead->tensor;
}

}  // namespace warpgrad::cpu::kda
