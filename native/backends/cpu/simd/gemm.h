#pragma once

// Products of small float32 matrices (sides up to a few hundred, operands in cache), one thread.

#include <cstdint>

namespace warpgrad::cpu::WARPGRAD_ISA {

enum class Layout : uint8_t {
  kPlain,       // op(X)(i, j) = data[i * ld + j]
  kTransposed,  // op(X)(i, j) = data[j * ld + i]
  kPacked,      // what pack_b wrote; for the second operand only
};

struct Operand {
  const float* data;
  int64_t ld;
  Layout layout = Layout::kPlain;
};

// C[m × n] = alpha · op(A)[m × k] · op(B)[k × n], or C += it. Any m, n, k >= 0; nothing outside the matrices is read or
// written, and C may not overlap them. A never needs packing, nor does a plain B. A transposed B is packed into
// `scratch` (packed_elems(k, n) floats; unused, and may be null, otherwise): pack it once by pack_b where it is used
// repeatedly. Each element is summed over k in ascending order, so it does not depend on m, n or its position.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, Operand a, Operand b, bool accumulate, float* c, int64_t ldc,
          float* scratch);

// Packs op(B)[k × n] as panels [ceil(n / columns)][k][columns], zero where n ends. `packed` must not overlap `b`.
void pack_b(int64_t k, int64_t n, Operand b, float* packed);
int64_t packed_elems(int64_t k, int64_t n);

}  // namespace warpgrad::cpu::WARPGRAD_ISA
