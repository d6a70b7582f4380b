#pragma once

// Which keys a query sees. Plain data and functions with internal linkage: included by *.isa.cc units too.

#include <cstdint>

namespace warpgrad::cpu::attention {

// One sequence's band: row i sees the keys j with i + offset - left <= j <= i + offset + right.
struct Band {
  int64_t q_len, k_len;
  int64_t left, right;  // at most q_len + k_len, which is as good as unbounded
  int64_t offset;       // k_len - q_len: the last row is aligned with the last key
};

static inline Band make_band(int64_t q_len, int64_t k_len, int64_t left, int64_t right) {
  const int64_t unbounded = q_len + k_len;
  return {q_len, k_len, left < unbounded ? left : unbounded, right < unbounded ? right : unbounded, k_len - q_len};
}

static inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}

// Row `row` sees the keys [first_key, end_key), key `key` is seen by the rows [first_row, end_row). Both ends grow with
// the argument, so a block of rows sees [first_key(first row), end_key(last row)), with no gaps.
static inline int64_t first_key(const Band& band, int64_t row) {
  return clamp(row + band.offset - band.left, 0, band.k_len);
}
static inline int64_t end_key(const Band& band, int64_t row) {
  return clamp(row + band.offset + band.right + 1, 0, band.k_len);
}
static inline int64_t first_row(const Band& band, int64_t key) {
  return clamp(key - band.offset - band.right, 0, band.q_len);
}
static inline int64_t end_row(const Band& band, int64_t key) {
  return clamp(key - band.offset + band.left + 1, 0, band.q_len);
}

}  // namespace warpgrad::cpu::attention
