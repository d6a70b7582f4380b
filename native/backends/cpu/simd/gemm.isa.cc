#include "backends/cpu/simd/gemm.h"

#include "backends/cpu/simd/micro_kernel.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

// What the tiles of one product share.
struct Product {
  int64_t k;
  float alpha;
  bool accumulate;
  int64_t lda, ldb, ldc;
};

// kRagged: the last vector has `last` columns only.
template <AOrder kOrder, int kRows, int kVecs, bool kRagged>
void multiply_tile(const Product& product, const float* a, const float* b, float* c, int last) {
  Vec acc[kRows][kVecs];
  zero(acc);
  if constexpr (kRagged) {
    const int64_t ldb = product.ldb;
    const auto load_b = [=](int64_t k, int v) __attribute__((always_inline)) {
      const float* from = b + k * ldb + v * kLanes;
      return v + 1 == kVecs ? load_partial(from, last) : load(from);
    };
    multiply_with<kOrder>(product.k, a, product.lda, load_b, acc);
  } else {
    multiply<kOrder>(product.k, a, product.lda, b, product.ldb, acc);
  }
  const Vec alpha = splat(product.alpha);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + r * product.ldc + v * kLanes;
      if (kRagged && v + 1 == kVecs) {
        const Vec old = product.accumulate ? load_partial(to, last) : Vec{};
        store_partial(to, product.accumulate ? fma(alpha, acc[r][v], old) : alpha * acc[r][v], last);
      } else {
        store(to, product.accumulate ? fma(alpha, acc[r][v], load(to)) : alpha * acc[r][v]);
      }
    }
  }
}

template <AOrder kOrder, int kRows>
void multiply_rows(const Product& product, const float* a, const float* b, float* c, int64_t columns) {
  static_assert(kMicroVecs == 2);
  const int last = static_cast<int>(columns % kLanes);
  if (columns == kMicroColumns) {
    multiply_tile<kOrder, kRows, 2, false>(product, a, b, c, 0);
  } else if (columns > kLanes) {
    multiply_tile<kOrder, kRows, 2, true>(product, a, b, c, last);
  } else if (columns == kLanes) {
    multiply_tile<kOrder, kRows, 1, false>(product, a, b, c, 0);
  } else {
    multiply_tile<kOrder, kRows, 1, true>(product, a, b, c, last);
  }
}

// One panel of columns: all rows, the remainder in halves.
template <AOrder kOrder>
void multiply_panel(int64_t m, const Product& product, const float* a, const float* b, float* c, int64_t columns) {
  const int64_t row_step = kOrder == AOrder::kRowMajor ? product.lda : 1;
  int64_t row = 0;
  const auto run = [&]<int kRows>() {
    multiply_rows<kOrder, kRows>(product, a + row * row_step, b, c + row * product.ldc, columns);
    row += kRows;
  };
  while (m - row >= kMicroRows) run.template operator()<kMicroRows>();
  if (m - row >= 4) run.template operator()<4>();
  if (m - row >= 2) run.template operator()<2>();
  if (m - row >= 1) run.template operator()<1>();
}

// packed[k][columns] of one panel from the rows of a transposed matrix.
void pack_transposed_panel(int64_t k, int64_t columns, const float* b, int64_t ldb, float* packed) {
  for (int64_t v = 0; v < kMicroColumns; v += kLanes) {
    for (int64_t p = 0; p < k; p += kLanes) {
      const int depth = static_cast<int>(k - p < kLanes ? k - p : kLanes);
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const float* from = b + (v + i) * ldb + p;
        rows[i] = v + i < columns ? (depth == kLanes ? load(from) : load_partial(from, depth)) : Vec{};
      }
      transpose(rows);
      for (int i = 0; i < depth; ++i) store(packed + (p + i) * kMicroColumns + v, rows[i]);
    }
  }
}

void pack_plain_panel(int64_t k, int64_t columns, const float* b, int64_t ldb, float* packed) {
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t v = 0; v < kMicroColumns; v += kLanes) {
      const int64_t rest = columns - v;
      const int count = static_cast<int>(rest < 0 ? 0 : rest < kLanes ? rest : kLanes);
      store(packed + p * kMicroColumns + v, load_partial(b + p * ldb + v, count));
    }
  }
}

}  // namespace

int64_t packed_elems(int64_t k, int64_t n) {
  return (n + kMicroColumns - 1) / kMicroColumns * kMicroColumns * k;
}

void pack_b(int64_t k, int64_t n, Operand b, float* packed) {
  for (int64_t column = 0; column < n; column += kMicroColumns, packed += k * kMicroColumns) {
    const int64_t columns = n - column < kMicroColumns ? n - column : kMicroColumns;
    if (b.layout == Layout::kTransposed) {
      pack_transposed_panel(k, columns, b.data + column * b.ld, b.ld, packed);
    } else {
      pack_plain_panel(k, columns, b.data + column, b.ld, packed);
    }
  }
}

void gemm(int64_t m, int64_t n, int64_t k, float alpha, Operand a, Operand b, bool accumulate, float* c, int64_t ldc,
          float* scratch) {
  if (b.layout == Layout::kTransposed) {
    pack_b(k, n, b, scratch);
    b = {scratch, 0, Layout::kPacked};
  }
  const bool packed = b.layout == Layout::kPacked;
  const Product product{k, alpha, accumulate, a.ld, packed ? kMicroColumns : b.ld, ldc};
  for (int64_t column = 0; column < n; column += kMicroColumns) {
    const int64_t columns = n - column < kMicroColumns ? n - column : kMicroColumns;
    const float* panel = b.data + (packed ? column * k : column);
    if (a.layout == Layout::kPlain) {
      multiply_panel<AOrder::kRowMajor>(m, product, a.data, panel, c + column, columns);
    } else {
      multiply_panel<AOrder::kColumnMajor>(m, product, a.data, panel, c + column, columns);
    }
  }
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
